package admission

import "time"

// What the ceiling goes by. Above any bound the edge is overloaded.
const (
	maxLoopDelay = 250 * time.Millisecond // a post to a loop until it is served
	maxConnect   = 2 * time.Second        // a whole request to `connected`; 500 ms of it may be the router's
	maxLag       = time.Second            // the routers' backfill

	ceilingEvery = 500 * time.Millisecond // between two steps
	ceilingFloor = 0.1
	ceilingFall  = 0.75
	ceilingRise  = 0.05 // a step: from the floor to the whole rate in 9 s
)

// Signals are the worst that was seen since the last call.
type Signals struct {
	LoopDelay   time.Duration
	Connect     time.Duration
	BackfillLag time.Duration
}

// ceiling is the part of the resume and fresh rates that is given out:
// additive increase, multiplicative decrease. ceilingFloor <= factor <= 1.
type ceiling struct {
	factor float64
	at     time.Time // of the last step
	worst  Signals   // since then
}

// observe takes signals and reports whether the factor changed.
func (c *ceiling) observe(s Signals, now time.Time) bool {
	c.worst.LoopDelay = max(c.worst.LoopDelay, s.LoopDelay)
	c.worst.Connect = max(c.worst.Connect, s.Connect)
	c.worst.BackfillLag = max(c.worst.BackfillLag, s.BackfillLag)
	before := c.factor
	switch {
	case c.worst.BackfillLag > maxLag:
		c.factor = ceilingFloor // at once: each admission would make the lag longer
	case now.Sub(c.at) < ceilingEvery:
		return false
	case c.worst.LoopDelay > maxLoopDelay || c.worst.Connect > maxConnect:
		c.factor = max(ceilingFloor, c.factor*ceilingFall)
	default:
		c.factor = min(1, c.factor+ceilingRise)
	}
	c.at, c.worst = now, Signals{}
	return c.factor != before
}
