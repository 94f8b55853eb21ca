package admission

import "time"

// uneven notices that this edge has given out more than the region's others: their
// backlogs are their passes not yet due over their rates. What is known of them is 200 ms
// old, so it goes by the least of its own of the last looks: when everybody's grows, it
// is not ahead of them only because it knows its own sooner.
type uneven struct {
	own    [unevenLooks]time.Duration // newest first
	others time.Duration              // on average
	behind bool
}

const (
	unevenLooks = 4
	// unevenMargin is worth another trip.
	unevenMargin = 2 * time.Second
)

// longer says that a wait here is longer than at the others.
func (u *uneven) longer(wait time.Duration) bool { return u.behind && wait > u.others+unevenMargin }

// Backlog is how long the passes that this edge gave out, and that are not yet due, will
// take; and of how many a second.
func (g *Gate) Backlog(now time.Time) (backlog time.Duration, perSecond float64) {
	passes := 0
	for _, name := range []Lane{LaneResume, LaneFresh} {
		l := &g.lanes[name]
		l.slots.turn(now)
		passes += len(l.slots.due)
		perSecond += l.bucket.rate
	}
	return BacklogOf(passes, perSecond), perSecond
}

// BacklogOf is that of an edge with so many passes and such rates.
func BacklogOf(passes int, perSecond float64) time.Duration {
	if passes <= 0 {
		return 0
	}
	return min(seconds(float64(passes)/max(perSecond, 1e-3)), 2*Horizon)
}

// Compare takes the mean backlog of the region's other edges with room; known: there are
// such edges, and theirs is. Call it each 100 ms.
func (g *Gate) Compare(others time.Duration, known bool, now time.Time) {
	u := &g.uneven
	copy(u.own[1:], u.own[:])
	u.own[0], _ = g.Backlog(now)
	u.others = others
	least := u.own[0]
	for _, own := range u.own {
		least = min(least, own)
	}
	if least -= unevenMargin; u.behind {
		least = u.own[0] // until it is level: else all who come in 400 ms get slots here again
	}
	u.behind = known && g.others && least > others
}
