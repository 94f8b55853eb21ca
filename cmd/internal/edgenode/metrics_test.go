package edgenode

import (
	"slices"
	"strings"
	"testing"
)

// units are what names of metrics may end with: seconds, bytes, a number of things that
// are named, a ratio, or the total of a counter.
var units = []string{
	"total", "seconds", "bytes", "ratio",
	"channels", "clients", "conns", "events", "handshakes", "incidents", "interests", "items", "keys", "members",
	"operations", "passes", "questions", "reads", "repairs", "revocations", "rows", "streams", "subscriptions",
}

// states are 1 or 0 and need no unit; rates are so many things a second.
var states = []string{"spillway_gateway_drain_under_way", "spillway_presence_bus_up"}

func TestNamesOfMetricsEndWithTheirUnit(t *testing.T) {
	p := newPair(t)
	seen := 0
	for _, ops := range []string{p.one.OpsAddr(), p.routerOps} {
		for line := range strings.Lines(scrape(t, ops)) {
			words := strings.Fields(line)
			if len(words) < 3 || words[1] != "TYPE" || !strings.HasPrefix(words[2], "spillway_") {
				continue
			}
			seen++
			name := strings.TrimSuffix(words[2], "_per_second")
			last := name[strings.LastIndexByte(name, '_')+1:]
			if !slices.Contains(units, last) && !slices.Contains(states, name) {
				t.Errorf("%s: its last word is no unit", words[2])
			}
			if words[3] == "counter" && last != "total" {
				t.Errorf("%s: is a counter", words[2])
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d metrics are seen", seen)
	}
}
