package historytest

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// agreesWithMemory does the same random calls on a store and on its plain twin
// in memory, and compares every answer. Epochs differ between the two: each
// call is translated.
func agreesWithMemory(t *testing.T, open Open) {
	s := opened(t, open)
	twin := memory.New(memory.Default())
	t.Cleanup(func() { _ = twin.Close() })
	check := 0
	rapid.Check(t, func(rt *rapid.T) {
		check++ // names of its own: the data of the checks before stays
		m := &twins{ctx: callContext(t), stores: [2]history.Store{s, twin}, prefix: fmt.Sprintf("n%d:", check)}
		rt.Repeat(map[string]func(*rapid.T){
			"append": m.append, "heads": m.heads, "read": m.read, "trim": m.trim,
		})
	})
}

type twins struct {
	ctx    context.Context
	stores [2]history.Store
	prefix string
}

func (m *twins) channels(rt *rapid.T) []string {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 4, rapid.ID).Draw(rt, "channels")
	for i := range names {
		names[i] = m.prefix + names[i]
	}
	return names
}

var someKeys = []history.Key{{Scope: "b", Key: "1"}, {Scope: "b", Key: "2"}, {Scope: "u:x", Key: "1"}}

func (m *twins) append(rt *rapid.T) {
	names := m.channels(rt)
	shift := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1}).Draw(rt, "shift of the believed head")
	length := rapid.IntRange(1, 4).Draw(rt, "events")
	age := rapid.IntRange(0, 5).Draw(rt, "hours old")
	key := rapid.IntRange(-3, len(someKeys)-1).Draw(rt, "key")
	timeMS := time.Now().Add(-time.Duration(age)*hour - time.Minute).UnixMilli()
	var outcomes [2][]history.Outcome
	var refused [2]bool
	for i, s := range m.stores {
		heads := m.load(rt, s, names)
		var runs []history.Run
		for _, h := range heads {
			h.Offset += uint64(shift)
			run := runAfter(h, length)
			for j := range run.Events {
				run.Events[j].TimeMS = timeMS
			}
			if key >= 0 {
				run.Events[0].Scope, run.Events[0].Key = someKeys[key].Scope, someKeys[key].Key
			}
			runs = append(runs, run)
		}
		var err error
		outcomes[i], err = s.Append(m.ctx, runs)
		refused[i] = err != nil
	}
	if !reflect.DeepEqual(outcomes[0], outcomes[1]) || refused[0] != refused[1] {
		rt.Fatalf("outcomes %v, refused %v", outcomes, refused)
	}
}

func (m *twins) load(rt *rapid.T, s history.Store, names []string) []history.Head {
	var queries []history.HeadQuery
	for _, name := range names {
		queries = append(queries, history.HeadQuery{Channel: name, Keys: someKeys})
	}
	heads, err := s.Heads(m.ctx, queries)
	if err != nil {
		rt.Fatal(err)
	}
	return heads
}

func (m *twins) heads(rt *rapid.T) {
	names := m.channels(rt)
	a, b := m.load(rt, m.stores[0], names), m.load(rt, m.stores[1], names)
	for i := range a {
		a[i].Epoch, b[i].Epoch = 0, 0
	}
	if !reflect.DeepEqual(a, b) {
		rt.Fatalf("heads %+v\ntwin  %+v", a, b)
	}
}

func (m *twins) read(rt *rapid.T) {
	var ranges []history.Range
	for _, name := range m.channels(rt) {
		ranges = append(ranges, history.Range{
			Channel: name,
			After:   rapid.Uint64Range(0, 30).Draw(rt, "after"), Before: rapid.Uint64Range(0, 30).Draw(rt, "before"),
			Reverse: rapid.Bool().Draw(rt, "reverse"), Limit: rapid.IntRange(1, 10).Draw(rt, "limit"),
			MaxBytes: rapid.IntRange(0, 60).Draw(rt, "max bytes"),
		})
	}
	var pages [2][]history.Page
	for i, s := range m.stores {
		var err error
		if pages[i], err = s.Read(m.ctx, ranges); err != nil {
			rt.Fatal(err)
		}
		for j := range pages[i] {
			p := &pages[i][j]
			p.Epoch = 0
			for k := range p.Events {
				p.Events[k].Key, p.Events[k].Scope, p.Events[k].TimeMS = "", "", 0
			}
		}
	}
	if !reflect.DeepEqual(pages[0], pages[1]) {
		rt.Fatalf("ranges %+v\npages %+v\ntwin  %+v", ranges, pages[0], pages[1])
	}
}

func (m *twins) trim(rt *rapid.T) {
	rule := history.Retention{
		Namespace: m.prefix[:len(m.prefix)-1],
		Size:      rapid.IntRange(0, 6).Draw(rt, "size"),
		TTL:       time.Duration(rapid.IntRange(0, 4).Draw(rt, "TTL")) * hour,
	}
	window := time.Duration(rapid.IntRange(0, 6).Draw(rt, "window")) * hour
	for _, s := range m.stores {
		// as often as it takes: the order in which channels are cut is free
		for {
			n, err := s.Trim(m.ctx, []history.Retention{rule}, window, 7)
			if err != nil {
				rt.Fatal(err)
			}
			if n < 7 {
				break
			}
		}
	}
}
