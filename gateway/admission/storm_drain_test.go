package admission_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// drainTen has ten edges of a hundred leave within a second: two thirds of their
// clients can move, the others are old. before may change the storm.
func drainTen(t testing.TB, seed uint64, before func(*storm)) *storm {
	n := perEdge()
	s := newStorm(t, seed, scaled(n), admission.Capacity{MaxConns: n * 3 / 2, Margin: n / 20}, 100, "eu")
	s.reset = time.Second
	s.fill("eu", n*2/3, sdk, 10)
	s.fill("eu", n-n*2/3, everySec, 0)
	if before != nil {
		before(s)
	}
	s.run(3 * time.Second)
	for i := range 10 {
		s.after(s.between(0, time.Second), func() { s.leave(s.edges[i*7], fmt.Sprint("op-", i), 25*time.Second, nil) })
	}
	s.run(40 * time.Second)
	return s
}

// A rolling restart at scale: the leaving edges share what receivers grant, never
// point at each other, interrupt nobody who can move, close the others over the whole
// window, and leave the receivers evenly filled.
func TestTenEdgesOfAHundredLeaveAtOnce(t *testing.T) {
	s := drainTen(t, 1, nil)
	s.kept()
	for _, l := range s.leavers {
		if l.interrupted > 0 || l.bare > l.total/100 { // one that comes in late is told at once
			t.Errorf("%s: %d clients that can move are interrupted, %d told without a grant", l.edge.id, l.interrupted, l.bare)
		}
		if l.moved != l.total-l.old || l.closed != l.old || l.edge.conns != 0 {
			t.Errorf("%s: of %d, %d of them old: %d moved, %d closed, %d are left", l.edge.id, l.total, l.old, l.moved, l.closed, l.edge.conns)
		}
		for second, closes := range l.closes[2:23] {
			if even := float64(l.closed) / 25; float64(closes) > 2*even+3 {
				t.Errorf("%s closes %d clients in second %d, %.0f being even", l.edge.id, closes, second+2, even)
			}
		}
	}
	o, b := s.outcome(3*time.Second), s.balance("eu")
	t.Logf("old clients: %v; %d moved; balance max/mean %.3f", o, s.movedByGrants(), b)
	if b > 1.15 {
		t.Errorf("the fullest edge has %.3f of the mean", b)
	}
	if o.max > 2.5 {
		t.Errorf("an old client is away for %.1f s, being told at its slot", o.max)
	}
}

// A handful of clients does not take the whole window: they are told at ten a second,
// by grants, and those who cannot move are still closed over all of it.
func TestAHandfulOfClientsIsMovedInASecondOrTwo(t *testing.T) {
	s := newStorm(t, 1, admission.Default(), admission.Capacity{MaxConns: 1000, Margin: 50}, 3, "eu")
	for who := range 12 {
		c := client{edge: 0, trying: -1, hint: -1, ticket: true}
		if who >= 6 {
			c.policy, c.ticket = everySec, false
		}
		s.clients = append(s.clients, c)
	}
	s.edges[0].conns = 12
	s.run(3 * time.Second)
	l := s.leave(s.edges[0], "op", 25*time.Second, nil)
	s.run(6 * time.Second)
	if l.moved != 6 || l.interrupted+l.bare > 0 || l.closed > 2 {
		t.Errorf("after 3 s: %d of 6 are moved, %d told without a grant, %d interrupted, %d closed", l.moved, l.bare, l.interrupted, l.closed)
	}
	s.run(40 * time.Second)
	s.kept()
	for _, n := range l.closes {
		if n > 1 || l.closed != 6 {
			t.Fatalf("%d closed, by second: %v", l.closed, l.closes)
		}
	}
}

// A bus that loses messages costs questions, not promises.
func TestDrainsKeepTheirPromisesOverABadBus(t *testing.T) {
	for seed := range uint64(small(2, 1)) {
		s := drainTen(t, seed, func(s *storm) { s.lostCalls = 0.2 })
		s.kept()
		for _, l := range s.leavers {
			if l.interrupted > 0 || l.edge.conns != 0 {
				t.Errorf("seed %d: %s: %d interrupted, %d are left, %d told without a grant", seed, l.edge.id, l.interrupted, l.edge.conns, l.bare)
			}
		}
	}
}

// Receivers that die while clients are on their way: nobody is sent to a dead edge for
// longer than membership needs, no promise of another edge breaks, everybody is back.
func TestReceiversMayDieInTheMiddleOfDrains(t *testing.T) {
	for seed := range uint64(small(2, 1)) {
		s := drainTen(t, seed, func(s *storm) {
			for i := range 5 {
				s.after(time.Duration(8+i)*time.Second, func() { s.kill(s.edges[1+i*13]) })
			}
		})
		s.run(90 * time.Second)
		s.kept()
		interrupted := 0
		for _, l := range s.leavers {
			interrupted += l.interrupted
		}
		if interrupted > 0 {
			t.Errorf("seed %d: %d clients that can move are interrupted", seed, interrupted)
		}
	}
}

// balance is the fullest serving edge of a region over the mean.
func (s *storm) balance(region string) float64 {
	most, sum, n := 0, 0, 0
	for _, e := range s.edges {
		if e.region == region && e.alive && !e.draining {
			most, sum, n = max(most, e.conns), sum+e.conns, n+1
		}
	}
	return float64(most) * float64(n) / float64(max(sum, 1))
}

// movedByGrants is how many came by the moved lane.
func (s *storm) movedByGrants() int {
	n := 0
	for _, e := range s.edges {
		for _, k := range e.arrived {
			n += k
		}
	}
	return n
}
