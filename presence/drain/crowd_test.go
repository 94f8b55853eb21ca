package drain

import (
	"fmt"
	"testing"
	"time"
)

// Many receivers grant a few each, all from the same moment on. What is let go must
// still be one after the other: in step it was 90 at once, each five seconds.
func TestGrantsOfManyReceiversDoNotGoInStep(t *testing.T) {
	w := newWorld()
	for i := range 90 {
		w.add(fmt.Sprintf("r%02d", i), "eu", 1000, 0.4, 0.2)
	}
	m := w.begin("e1", Counts{Movable: 540, Unmovable: 360}, 20*time.Second, nil)
	told, closed := 0, 0
	for w.now.Sub(w.start) < 18*time.Second {
		for range int(200 * time.Millisecond / Step) {
			w.step()
		}
		if n := m.closed - closed; n > 10 {
			t.Errorf("%v: %d closes in 200 ms, 4 being even", w.now.Sub(w.start), n)
		}
		all := len(m.told) + m.moved
		if n := all - told; n > 18 {
			t.Errorf("%v: %d hints in 200 ms, 7 being even", w.now.Sub(w.start), n)
		}
		told, closed = all, m.closed
	}
}

// An edge that began to leave a moment ago grants nothing; the others are asked for its
// part before anybody is told to go without a grant.
func TestThePartOfAReceiverThatDrainsIsAskedOfTheOthers(t *testing.T) {
	w := newWorld()
	w.add("e2", "eu", 10_000, 500, 100).closed = true // it says "draining", membership not yet
	w.add("e3", "eu", 10_000, 500, 100)
	m := w.begin("e1", Counts{Movable: 1000, Unmovable: 100}, 20*time.Second, nil)
	for range int(20 * time.Second / Step) {
		w.step()
	}
	if m.did["hint"] > 0 || m.moved != 1000 || m.closed != 100 {
		t.Errorf("%d told without a grant, %d moved, %d closed: %v", m.did["hint"], m.moved, m.closed, m.did)
	}
}
