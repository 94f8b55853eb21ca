package admission_test

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// rush has clients without tickets come to a quiet region at once: so many that the
// fresh lanes need that long for them. Of them every oldEvery-th is old (0: none).
func rush(t testing.TB, seed uint64, need time.Duration, oldEvery int, clocks time.Duration) (*storm, float64) {
	set := scaled(perEdge())
	s := newStorm(t, seed, set, admission.Capacity{MaxConns: 10 * perEdge(), Margin: 10}, 100, "eu")
	for _, e := range s.edges {
		e.offset = s.between(-clocks, clocks)
	}
	rate := float64(100 * set.FreshPerSecond)
	n := int(rate * need.Seconds())
	for i := range n {
		c := client{policy: sdk, edge: -1, trying: -1, hint: -1, home: 0, down: true, lostAt: 3 * time.Second}
		if oldEvery > 0 && i%oldEvery == 0 {
			c.policy = everySec
		}
		s.clients = append(s.clients, c)
	}
	s.out, s.displaced = n, n
	s.run(3 * time.Second)
	for i := range s.clients {
		s.dialIn(int32(i), s.between(0, time.Second))
	}
	s.untilBack(10*need + time.Minute)
	return s, rate
}

// Who is refused comes back at a slot: second attempts never come faster than the
// lanes serve, in any window, but for a burst; everybody needs one refusal at most;
// and the whole is done at the rate.
func TestPassesSpreadSecondAttempts(t *testing.T) {
	for seed := range uint64(small(3, 1)) {
		s, rate := rush(t, seed, 25*time.Second, 0, 200*time.Millisecond)
		o := s.outcome(3 * time.Second)
		t.Logf("%v; passes peak %.0f/s, rate %.0f/s", o, peak(s.passes), rate)
		s.kept()
		burst := 0.1 * rate // of a hundred edges: slots of one instant, and the way to them
		level := 0.0
		for i, n := range s.passes {
			if level = max(level-rate*bucketTime.Seconds(), 0) + float64(n); level > burst+rate*bucketTime.Seconds() {
				t.Fatalf("seed %d: %v after the start second attempts are %.0f ahead of the rate of %.0f/s", seed, time.Duration(i)*bucketTime-3*time.Second, level, rate)
			}
		}
		if o.back > 25*time.Second*13/10+time.Second {
			t.Errorf("seed %d: all back in %v", seed, o.back)
		}
		if o.perAdmitted > 1.1 {
			t.Errorf("seed %d: %.2f refusals per admitted client", seed, o.perAdmitted)
		}
	}
}

// More than the timetable holds: who gets no slot is spread at random over the second
// half of the horizon, and comes again. All are back at the rate all the same.
func TestARushBeyondTheTimetableEnds(t *testing.T) {
	s, _ := rush(t, 1, 90*time.Second, 0, 200*time.Millisecond)
	o := s.outcome(3 * time.Second)
	t.Log(o)
	s.kept()
	if o.back > 90*time.Second*13/10+time.Second {
		t.Errorf("all back in %v", o.back)
	}
}

// Half of the crowd cannot read a slot and tries each second: neither half waits for
// the other to be done.
func TestObedientAndOldClientsShareALane(t *testing.T) {
	s, _ := rush(t, 1, 25*time.Second, 2, 200*time.Millisecond)
	s.kept()
	t.Log(s.outcome(3 * time.Second))
	var sum [2]float64
	var n [2]float64
	for i := range s.clients {
		c := &s.clients[i]
		k := 0
		if c.policy != sdk {
			k = 1
		}
		sum[k] += (c.cameAt - c.lostAt).Seconds()
		n[k]++
	}
	obedient, old := sum[0]/n[0], sum[1]/n[1]
	t.Logf("mean wait: obedient %.1f s, old %.1f s", obedient, old)
	if obedient > 2*old || old > 2*obedient {
		t.Errorf("mean wait: obedient %.1f s, old %.1f s", obedient, old)
	}
}

// Clocks that differ by more than a pass allows cost a trip, never the slot.
func TestClocksMayDifferBySeconds(t *testing.T) {
	s, _ := rush(t, 1, 20*time.Second, 0, 2*time.Second)
	o := s.outcome(3 * time.Second)
	t.Log(o)
	s.kept()
	if o.back > 20*time.Second*13/10+5*time.Second {
		t.Errorf("all back in %v", o.back)
	}
}
