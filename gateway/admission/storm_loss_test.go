package admission_test

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// loss is how much is lost, and how fast it may come back.
type loss struct {
	name   string
	edges  int           // that die; 0: all conns are cut, and every edge lives
	region time.Duration // that the displaced need at the region's rate; 0: edges' own rates
	blind  time.Duration // the balancer sends clients to dead edges for so long
}

var losses = []loss{
	{"one of 100", 1, 0, 5 * time.Second},
	{"ten of 100 at a region's rate", 10, 20 * time.Second, 5 * time.Second},
	{"thirty of 100", 30, 0, 0},
	{"every conn cut", 0, 0, 0},
}

// lose runs one loss and returns n/rate too.
func lose(t testing.TB, x loss, p policy, seed uint64) (*storm, outcome, time.Duration) {
	n := perEdge()
	if x.edges == 0 && p != sdk && !*million {
		n /= 5 // a hundred seconds of tries
	}
	set := scaled(n)
	back := 100 - x.edges
	lost := n * (100 - back)
	if x.edges == 0 {
		lost = 100 * n
	}
	if x.region > 0 {
		set.RegionResumePerSecond = int(float64(lost) / x.region.Seconds())
		set.RegionFreshPerSecond = set.RegionResumePerSecond
	}
	room := admission.Capacity{MaxConns: 2 * n, Margin: n / 20}
	if x.edges == 0 {
		room.MaxConns = n * 10 / 9
	}
	s := newStorm(t, seed, set, room, 100, "eu")
	s.reset = x.blind
	s.fill("eu", n, p, 0)
	s.run(5 * time.Second)
	for _, e := range s.edges[:x.edges] {
		s.kill(e)
	}
	if x.edges == 0 {
		s.cut()
	}
	own, region := set.FreshPerSecond, set.RegionFreshPerSecond
	if p == sdk {
		own, region = set.ResumePerSecond, set.RegionResumePerSecond
	}
	perSecond := float64(own * back)
	if region > 0 {
		perSecond = min(perSecond, float64(region*back)/100)
	}
	ideal := time.Duration(float64(lost) / perSecond * float64(time.Second))
	s.untilBack(4*ideal + time.Minute)
	return s, s.outcome(5 * time.Second), ideal
}

// Whatever is lost and whatever the clients are like: no edge admits more than its
// lanes in any window (I5), everybody is back within 1.3 n/rate and one try, and
// nobody starves.
func TestLossesAreOverWithinTheRate(t *testing.T) {
	for _, x := range losses[:small(len(losses), 2)] {
		for _, p := range []policy{sdk, everySec, everyFive} {
			t.Run(x.name+", "+p.String(), func(t *testing.T) {
				s, o, ideal := lose(t, x, p, 1)
				t.Logf("n/rate %.1f s: %v", ideal.Seconds(), o)
				s.kept()
				if most := ideal*13/10 + p.interval() + time.Second; o.back > most {
					t.Errorf("all back in %v, want at most %v", o.back, most)
				}
				if ideal > 10*time.Second && o.gini > 0.45 { // served evenly over the time: 0.33
					t.Errorf("the waits are not fair: Gini %.2f", o.gini)
				}
				if p == sdk && x.edges == 1 && o.refusedFirst > 0.05 {
					t.Errorf("%.1f %% of first attempts are refused", 100*o.refusedFirst)
				}
			})
		}
	}
}

// Every conn is cut, and the processors cannot do what the lanes allow, so the ceiling
// falls. Slots are told for when they are due, not for the worst moment: no client stays
// away while the lanes are idle.
func TestAFallenCeilingLeavesNoTail(t *testing.T) {
	const n, edges = 5_000, 6
	set := admission.Default()
	for _, cost := range []time.Duration{4500 * time.Microsecond, 6600 * time.Microsecond} {
		s := newStorm(t, 1, set, admission.Capacity{MaxConns: n * 10 / 9, Margin: n / 20}, edges, "eu")
		s.cost = cost
		s.fill("eu", n, sdk, 0)
		s.run(5 * time.Second)
		s.cut()
		does := n * cost
		s.untilBack(4 * does)
		o := s.outcome(5 * time.Second)
		t.Logf("a handshake costs %v: n/rate %d s, n over what the processors do %.1f s: %v", cost, n/set.ResumePerSecond, does.Seconds(), o)
		s.kept()
		if o.back > does*13/10 {
			t.Errorf("a handshake costs %v: all back in %v, want at most %v", cost, o.back, does*13/10)
		}
		if o.perAdmitted > 2 {
			t.Errorf("a handshake costs %v: %.2f refusals per admitted client", cost, o.perAdmitted)
		}
	}
}
