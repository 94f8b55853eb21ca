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

// A drain of a large cluster asks each for a few.
func TestASmallRequestIsGranted(t *testing.T) {
	r := request("a", 1, 1, 1)
	r.WindowMs = 60_000
	if o := NewGrants().Offer(r, receiver, epoch); o.Movable != 1 || o.Unmovable != 1 {
		t.Errorf("%v", o)
	}
}
