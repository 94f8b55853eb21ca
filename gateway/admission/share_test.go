package admission

import "testing"

// A hundred edges that each let a whole burst in at once are no region-wide rate.
func TestTheBurstIsSharedAsTheRateIs(t *testing.T) {
	set := Default()
	set.RegionFreshPerSecond = 100
	s := newSim(set)
	var peers []Peer
	for i := range 10 {
		peers = append(peers, Peer{ID: string(rune('a' + i))})
	}
	s.g.See(peers, true, s.now)
	n := 0
	for range 300 {
		if s.arrive(Arrival{Lane: LaneFresh}).Verdict == Admit {
			n++
		}
	}
	if want := set.FreshBurst / 10; n != want {
		t.Errorf("%d at once, want %d: a tenth of the burst, as of the rate", n, want)
	}
}
