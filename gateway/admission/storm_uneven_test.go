package admission_test

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// uneven cuts every conn of six edges whose balancer sends a third of all clients to the
// first one, and that one its part of the rest too: 44 % in all.
func uneven(t testing.TB, seed uint64, oneURL, alone bool) outcome {
	const n, edges = 5_000, 6
	s := newStorm(t, seed, admission.Default(), admission.Capacity{MaxConns: 2 * n, Margin: n / 20}, edges, "eu")
	s.favour, s.oneURL, s.alone = 0.33, oneURL, alone
	s.fill("eu", n, sdk, 0)
	s.run(5 * time.Second)
	s.cut()
	s.untilBack(5 * time.Minute)
	s.kept()
	return s.outcome(5 * time.Second)
}

// An edge to which nearly half of the region's clients come gives them slots of its own,
// and the other edges stand idle: 2.1 n/rate. So it sends newcomers on as soon as the
// others' backlogs are shorter, and whoever has a slot comes back to the edge whose it
// is. Behind one address nobody can be sent anywhere; who is refused without a slot has
// a chance to come out elsewhere.
func TestUnevenArrivalsAreInWithinTheRate(t *testing.T) {
	const rate = 30_000.0 / (6 * 300)
	for _, x := range []struct {
		name          string
		oneURL, alone bool
		least, most   float64 // of n/rate
	}{
		{"edges with addresses", false, false, 1, 1.3},
		{"one address", true, false, 1, 1.6},
		{"edges that do not hear each other", false, true, 1.8, 2.6}, // what it is for
	} {
		for seed := range uint64(small(4, 1)) {
			o := uneven(t, seed, x.oneURL, x.alone)
			took := o.back.Seconds() / rate
			t.Logf("%s: %.2f n/rate; %v", x.name, took, o)
			if took > x.most || took < x.least {
				t.Errorf("%s, seed %d: all back in %.2f n/rate, want %.1f to %.1f", x.name, seed, took, x.least, x.most)
			}
			if o.perAdmitted > 1.4 {
				t.Errorf("%s, seed %d: %.2f refusals per admitted client", x.name, seed, o.perAdmitted)
			}
		}
	}
}
