package admission_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// reopen is a new process under the name of one that has left.
func (e *edge) reopen() {
	e.setUp(e.set, e.room, 1)
	e.draining, e.listed, e.leaving, e.serveAt = false, true, nil, 0
}

// All hundred edges are restarted, five at a time: nobody is interrupted or refused,
// and a client is moved once or twice, however the edges come after each other.
func TestARollingRestartMovesEachClientOnceOrTwice(t *testing.T) {
	n := perEdge()
	s := newStorm(t, 1, scaled(n), admission.Capacity{MaxConns: n * 3 / 2, Margin: n / 40}, 100, "eu")
	s.fill("eu", n, sdk, 0)
	s.run(3 * time.Second)
	batches := small(20, 4)
	for batch := range batches {
		for i := range 5 {
			s.leave(s.edges[5*batch+i], fmt.Sprint("op-", batch, "-", i), 22*time.Second, nil)
		}
		s.run(s.now + 24*time.Second)
		for i := range 5 {
			s.edges[5*batch+i].reopen()
		}
		s.run(s.now + 2*time.Second) // figures of the new ones
	}
	s.kept()
	moved, restarted := 0, 0
	for _, l := range s.leavers {
		moved += l.moved
		restarted += n
		if l.interrupted > 0 || l.bare > l.total/100 || l.over == 0 { // one that comes in late is told at once
			t.Errorf("%s: of %d %d interrupted, %d told without a grant", l.edge.id, l.total, l.interrupted, l.bare)
		}
	}
	b, each := s.balance("eu"), float64(moved)/float64(restarted)
	t.Logf("%d edges: %.2f moves for each client that was there at first, %d refused, balance max/mean %.3f", 5*batches, each, s.refusals, b)
	if s.refusals > 0 {
		t.Errorf("%d are refused", s.refusals)
	}
	if each > 1.5 {
		t.Errorf("%.2f moves for each client", each)
	}
}
