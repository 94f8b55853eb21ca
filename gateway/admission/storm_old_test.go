package admission_test

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// metastable has thirty of a hundred edges die where a handshake costs an edge so much
// of its processor that it does twice the fresh lane's rate, one after the other. Old
// clients give up after 5 s; the work for them is done all the same, as in a server
// without admission.
func metastable(t testing.TB, p policy, change func(*admission.Settings)) (s *storm, n int) {
	n = perEdge()
	if !*million {
		n /= 2
	}
	set := scaled(n)
	rate := set.FreshPerSecond
	if change != nil {
		change(&set)
	}
	s = newStorm(t, 1, set, admission.Capacity{MaxConns: 2 * n, Margin: n / 20}, 100, "eu")
	s.reset = 0
	s.cost = time.Second / time.Duration(2*rate)
	s.fill("eu", n, p, 0)
	s.run(5 * time.Second)
	for _, e := range s.edges[:30] {
		s.kill(e)
	}
	return s, n
}

// Old clients that retry for ever, against admission and against none. Without it each
// edge works through a queue of clients that have given up: a storm that feeds itself,
// and never ends. With it everybody is back in 1.3 n/rate, and no handshake waits.
func TestAdmissionPreventsTheStormThatFeedsItself(t *testing.T) {
	for _, p := range []policy{everySec, everyFive}[:small(2, 1)] {
		s, n := metastable(t, p, nil)
		ideal := time.Duration(30*n/(70*scaled(n).FreshPerSecond)) * time.Second
		s.untilBack(4 * ideal)
		o := s.outcome(5 * time.Second)
		t.Logf("%v, on: n/rate %.0f s, %v; %d handshakes wasted, longest wait for the processor %v", p, ideal.Seconds(), o, s.wasted, s.worst)
		s.kept()
		if most := ideal*13/10 + p.interval(); o.back > most || s.wasted > 0 {
			t.Errorf("%v: all back in %v, want at most %v; %d handshakes wasted", p, o.back, most, s.wasted)
		}
		if s.worst > 2*time.Second {
			t.Errorf("%v: a handshake waits %v for the processor", p, s.worst)
		}

		s, _ = metastable(t, p, func(set *admission.Settings) { set.Enabled = false })
		before := s.displaced
		s.run(ideal)
		half := s.out
		s.run(4 * ideal)
		t.Logf("%v, off: after %.0f s %d of %d are back; %d handshakes wasted, longest wait for the processor %v",
			p, 4*ideal.Seconds(), before-s.out, before, s.wasted, s.worst)
		if back := before - s.out; back > before/2 || s.out != half {
			t.Errorf("%v: %d of %d come back without admission, %d of them after n/rate: the comparison shows nothing", p, back, before, half-s.out)
		}
	}
}

// Lanes that are set to four times what the processor does: the ceiling finds what it
// does, and all come back all the same.
func TestTheCeilingSavesLanesThatAreSetTooHigh(t *testing.T) {
	s, n := metastable(t, everySec, func(set *admission.Settings) {
		set.FreshPerSecond *= 8
		set.FreshBurst *= 8
		set.MaxWaiting = 1 << 20
	})
	for _, e := range s.edges {
		e.twins[admission.LaneFresh] = laneTwin(e.set.FreshPerSecond, 0, e.set.FreshBurst, 1)
	}
	does := time.Duration(30*n/(70*2*scaled(n).FreshPerSecond)) * time.Second
	s.untilBack(10 * does)
	o := s.outcome(5 * time.Second)
	t.Logf("n over what the processors do: %.0f s; %v; %d handshakes wasted, longest wait %v", does.Seconds(), o, s.wasted, s.worst)
	s.kept()
	if o.back > 4*does {
		t.Errorf("all back in %v", o.back)
	}
}
