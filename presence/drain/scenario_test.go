package drain

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios log into testdata")

// Each file of testdata is a scenario: commands, and indented below each what came
// of it. `go test ./presence/drain -run Scenarios -rewrite` writes the logs anew;
// read the difference.
//
//	edge ID [headroom=N] [rate=N] [fresh=N] [region=R] [noaddress] [paced]
//	drain ID critical=N movable=N unmovable=N window=S [oneaddress] [elsewhere] [grantedonly]
//	silent ID, back ID, draining ID, full ID, slow ID N, lapse ID, gone ID
//	stubborn ID N        the next N told by ID do not go
//	bus up|away
//	stop ID
//	at SECONDS           the clock runs until then; a line for each second
//	show                 the figures of every drain
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScenario(t, file) })
	}
}

func runScenario(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{world: newWorld(), t: t}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "    ") {
			continue // log of an earlier run
		}
		out.WriteString(line)
		command, _, _ := strings.Cut(line, "#")
		if words := strings.Fields(command); len(words) > 0 {
			s.do(words)
		}
		for _, l := range s.log {
			out.WriteString("    " + l + "\n")
		}
		s.log = nil
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, got := strings.Split(string(text), "\n"), strings.Split(out.String(), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("%s:%d: the log differs from there on; it is\n%s", file, i+1, out.String())
		}
	}
}

type scenario struct {
	*world
	t   *testing.T
	log []string
}

func (s *scenario) do(words []string) {
	verb, id, args := words[0], "", map[string]string{}
	if len(words) > 1 {
		id = words[1]
		for _, w := range words[2:] {
			k, v, _ := strings.Cut(w, "=")
			args[k] = v
		}
	}
	num := func(k string, otherwise int) int {
		if args[k] == "" {
			return otherwise
		}
		n, err := strconv.Atoi(args[k])
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	has := func(k string) bool { _, ok := args[k]; return ok }
	e := s.edges[id]
	switch verb {
	case "edge":
		e = s.add(id, "eu", num("headroom", 10_000), float64(num("rate", 500)), float64(num("fresh", 100)))
		e.Addressed, e.paced = !has("noaddress"), has("paced")
		if has("region") {
			e.Region = args["region"]
		}
	case "drain":
		window := time.Duration(num("window", 25)) * time.Second
		counts := Counts{Critical: num("critical", 0), Movable: num("movable", 0), Unmovable: num("unmovable", 0)}
		s.begin(id, counts, window, func(c *Config) {
			c.OneAddress, c.Elsewhere, c.GrantedOnly = has("oneaddress"), has("elsewhere"), has("grantedonly")
			c.KeepStragglers = c.GrantedOnly
		})
	case "silent":
		e.Silent = true
	case "back":
		e.Silent = false
	case "draining":
		e.Draining = true
	case "full":
		e.closed = true
	case "slow":
		e.MovedPerSecond, _ = strconv.ParseFloat(words[2], 64)
	case "lapse":
		e.lapse = true
	case "gone":
		delete(s.edges, id)
	case "stubborn":
		s.plans[id].stubborn, _ = strconv.Atoi(words[2])
	case "bus":
		s.busAway = id == "away"
	case "stop":
		s.obey(s.plans[id], s.plans[id].plan.Stop(s.now))
		s.plans[id].ended = true
	case "at":
		to, err := strconv.ParseFloat(id, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		s.runTo(s.start.Add(time.Duration(to * float64(time.Second))))
	case "show":
		s.show()
	default:
		s.t.Fatalf("unknown command %q", verb)
	}
}

func (s *scenario) runTo(end time.Time) {
	for s.now.Before(end) {
		s.step()
		if s.now.Sub(s.start)%time.Second == 0 {
			s.record()
		}
	}
}

// record logs what each drain did in the last second.
func (s *scenario) record() {
	for _, id := range sortedKeys(s.plans) {
		m := s.plans[id]
		words := []string{}
		for _, what := range sortedKeys(m.did) {
			words = append(words, fmt.Sprintf("%s %d", what, m.did[what]))
		}
		clear(m.did)
		if len(words) > 0 {
			s.log = append(s.log, fmt.Sprintf("%gs %s: %s", s.now.Sub(s.start).Seconds(), id, strings.Join(words, ", ")))
		}
	}
}

func (s *scenario) show() {
	for _, id := range sortedKeys(s.plans) {
		m := s.plans[id]
		var r gatewayv1.Progress
		m.plan.Report(&r, m.plan.cfg.Start)
		s.log = append(s.log, fmt.Sprintf("%s: moved %d, closed %d, stragglers %d, remaining %d (hinted %d); granted %d, missing %d, %.0f/s, ends at %.1fs",
			id, m.moved, m.closed, m.straying, m.remaining(), m.counts.Hinted, r.Granted, r.Missing, r.GrantedPerSecond, float64(r.PlannedMs)/1000))
		if r.Message != "" {
			s.log = append(s.log, "  "+r.Message)
		}
	}
	for _, id := range sortedKeys(s.edges) {
		e := s.edges[id]
		s.log = append(s.log, fmt.Sprintf("%s: headroom %d, confirmed %d, sent %d", id, e.Headroom, e.confirmed(), len(e.arrivals)))
	}
}
