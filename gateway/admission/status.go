package admission

import "time"

// Status is what the load figure and the metrics tell.
type Status struct {
	Headroom        int // conns that fresh clients could fill, grants taken off
	Granted         int // confirmed, and not yet come
	Waiting         [numLanes]int
	Passes          int // given out and not yet due
	MovedPerSecond  float64
	ResumePerSecond float64
	FreshPerSecond  float64
	Ceiling         float64
	SpentBytes      int    // that tickets used once are remembered by
	SpentDropped    uint64 // of them, forgotten before their time
}

// Status of now.
func (g *Gate) Status(conns int, now time.Time) Status {
	s := Status{
		Headroom: max(g.capacity.MaxConns-g.capacity.Margin-conns-g.grants.Outstanding(now), 0),
		Granted:  g.grants.Confirmed(now), Ceiling: g.Ceiling(),
		SpentBytes: g.spent.bytes(), SpentDropped: g.spent.dropped,
	}
	if g.draining {
		s.Headroom = 0
	}
	for _, name := range Lanes() {
		l := &g.lanes[name]
		l.slots.turn(now)
		s.Waiting[name] = l.count()
		s.Passes += len(l.slots.due)
	}
	s.MovedPerSecond, _ = g.rate(LaneMoved, now)
	s.ResumePerSecond, _ = g.rate(LaneResume, now)
	s.FreshPerSecond, _ = g.rate(LaneFresh, now)
	return s
}
