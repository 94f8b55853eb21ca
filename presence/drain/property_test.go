package drain

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever happens to receivers, bus and clients: a receiver is sent no more than it
// confirmed, and no faster; nobody is sent to an edge that drains, is silent or is
// gone; nobody is left at the end; every client is counted once.
func TestPlansKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		edges := rapid.IntRange(2, 6).Draw(rt, "edges")
		one := rapid.Bool().Draw(rt, "one address")
		for i := range edges {
			e := w.add(fmt.Sprintf("e%d", i), "eu", rapid.IntRange(0, 2000).Draw(rt, "headroom"),
				float64(rapid.IntRange(1, 500).Draw(rt, "rate")), float64(rapid.IntRange(1, 100).Draw(rt, "fresh")))
			e.Addressed = !one
		}
		window := time.Duration(rapid.IntRange(1, 20).Draw(rt, "window")) * time.Second
		for i := range rapid.IntRange(1, min(2, edges-1)).Draw(rt, "drains") {
			w.begin(fmt.Sprintf("e%d", i), Counts{
				Critical:  rapid.IntRange(0, 50).Draw(rt, "critical"),
				Movable:   rapid.IntRange(0, 1000).Draw(rt, "movable"),
				Unmovable: rapid.IntRange(0, 300).Draw(rt, "unmovable"),
			}, window, func(c *Config) { c.OneAddress = one })
		}
		end := w.now.Add(window)
		for w.now.Before(end) {
			if rapid.IntRange(0, 20).Draw(rt, "something") == 0 {
				disturb(rt, w, edges)
			}
			sent := make(map[string]int)
			for id, e := range w.edges {
				sent[id] = len(e.arrivals)
			}
			w.step()
			for id, e := range w.edges {
				if len(e.arrivals) > sent[id] && (e.Draining || e.Silent) {
					rt.Fatalf("%v: clients were sent to %s, draining %v, silent %v", w.now.Sub(w.start), id, e.Draining, e.Silent)
				}
				if len(e.arrivals) > e.confirmed() {
					rt.Fatalf("%s was sent %d and had confirmed %d", id, len(e.arrivals), e.confirmed())
				}
			}
		}
		for _, e := range w.edges {
			checkRate(rt, w, e)
		}
		for id, m := range w.plans {
			if m.remaining() != 0 {
				rt.Fatalf("%s: %d are left at the end", id, m.remaining())
			}
			if sum := m.moved + m.closed + m.straying + m.gone; sum != m.total {
				rt.Fatalf("%s: moved %d + closed %d + stragglers %d + gone %d, of %d", id, m.moved, m.closed, m.straying, m.gone, m.total)
			}
		}
	})
}

func disturb(rt *rapid.T, w *world, edges int) {
	id := fmt.Sprintf("e%d", rapid.IntRange(0, edges-1).Draw(rt, "edge"))
	e := w.edges[id]
	if e == nil {
		return
	}
	switch rapid.SampledFrom([]string{"silent", "back", "draining", "full", "slow", "lapse", "gone", "bus", "bus", "leave", "stubborn", "slow bus"}).Draw(rt, "what") {
	case "silent":
		e.Silent = true
	case "back":
		e.Silent = false
	case "draining":
		e.Draining = true
	case "full":
		e.closed = true
	case "slow":
		e.MovedPerSecond = e.rate * rapid.Float64Range(0.01, 1).Draw(rt, "lane")
	case "lapse":
		e.lapse = true
	case "gone":
		delete(w.edges, id)
	case "bus":
		w.busAway = !w.busAway
	case "slow bus":
		w.slowBus = time.Duration(rapid.IntRange(1, 2000).Draw(rt, "ms")) * time.Millisecond
	case "leave":
		for _, m := range w.plans {
			n := min(m.counts.Movable, rapid.IntRange(0, 300).Draw(rt, "leavers"))
			m.counts.Movable -= n
			m.gone += n
		}
	case "stubborn":
		for _, m := range w.plans {
			m.stubborn = 50
		}
	}
}

// checkRate: in no second come more than the drains together were granted for one.
// Grants of one asker that follow each other may overlap.
func checkRate(rt *rapid.T, w *world, e *edge) {
	slices.SortFunc(e.arrivals, time.Time.Compare)
	numbers := 0
	for _, by := range e.keeps {
		numbers += len(by)
	}
	most := int(float64(numbers)*e.rate*1.05) + 2*numbers
	first := 0
	for i, at := range e.arrivals {
		for at.Sub(e.arrivals[first]) >= time.Second {
			first++
		}
		if n := i - first + 1; n > most {
			rt.Fatalf("%s was sent %d in a second, with %d grants of %.0f/s", e.ID, n, numbers, e.rate)
		}
	}
}

// A drain that has room spreads what cannot move over the whole window, one by one.
func TestClosesFillTheWindowEvenly(t *testing.T) {
	w := newWorld()
	w.add("e1", "eu", 10_000, 500, 100)
	w.add("e2", "eu", 10_000, 500, 100)
	m := w.begin("e1", Counts{Unmovable: 1000}, 20*time.Second, nil)
	before := 0
	for second := range 20 {
		for range int(time.Second / Step) {
			w.step()
		}
		if n := m.closed - before; n < 40 || n > 55 {
			t.Errorf("%d closes in second %d, want 50", n, second)
		}
		before = m.closed
	}
	if m.remaining() != 0 {
		t.Errorf("%d are left", m.remaining())
	}
}

// Late ticks lose slots; they never make a burst.
func TestSlotsDoNotPileUp(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	every := 10 * time.Millisecond
	if n, _ := p.slots(now, time.Time{}, every, 1000); n != 5 {
		t.Fatalf("%d slots in %v", n, Step)
	}
	now = now.Add(3 * time.Second)
	if n, first := p.slots(now, time.Time{}, every, 1000); n != 5 || first.Before(now) {
		t.Fatalf("%d slots after three seconds, the first %v late", n, now.Sub(first))
	}
	if n, _ := p.slots(now, time.Time{}, every, 1000); n != 0 {
		t.Fatalf("%d more in the same tick", n)
	}
}
