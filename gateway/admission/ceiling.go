package admission

import (
	"math"
	"time"
)

// What the ceiling goes by. Above any bound the edge is overloaded.
const (
	maxLoopDelay = 250 * time.Millisecond // a post to a loop until it is served
	maxConnect   = 2 * time.Second        // a whole request to `connected`; 500 ms of it may be the router's
	maxLag       = time.Second            // the routers' backfill

	ceilingEvery = 500 * time.Millisecond // between two steps
	ceilingFloor = 0.1
	ceilingFall  = 0.75
	ceilingRise  = 0.05 // a step: from the floor to the whole rate in 9 s

	ceilingMemory = 20 * time.Second // of the mean: what the edge can do in the long run
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
	mean   float64   // of factor, decayed
	at     time.Time // of the last step
	worst  Signals   // since then
}

func newCeiling(now time.Time) ceiling { return ceiling{factor: 1, mean: 1, at: now} }

// then is what the factor will be after d if nothing new happens: it rises to where it
// has been of late. Whoever is told a slot by the factor of now would stay away while
// the lane is idle, since no slot can be told anew.
func (c *ceiling) then(d time.Duration) float64 {
	return max(c.factor, min(c.mean, c.factor+ceilingRise*float64(d)/float64(ceilingEvery)))
}

// observe takes signals and reports whether the factor changed.
func (c *ceiling) observe(s Signals, now time.Time) bool {
	c.worst.LoopDelay = max(c.worst.LoopDelay, s.LoopDelay)
	c.worst.Connect = max(c.worst.Connect, s.Connect)
	c.worst.BackfillLag = max(c.worst.BackfillLag, s.BackfillLag)
	before, since := c.factor, now.Sub(c.at)
	switch {
	case c.worst.BackfillLag > maxLag:
		c.factor = ceilingFloor // at once: each admission would make the lag longer
	case since < ceilingEvery:
		return false
	case c.worst.LoopDelay > maxLoopDelay || c.worst.Connect > maxConnect:
		c.factor = max(ceilingFloor, c.factor*ceilingFall)
	default:
		c.factor = min(1, c.factor+ceilingRise)
	}
	c.mean += (before - c.mean) * (1 - math.Exp2(-float64(max(since, 0))/float64(ceilingMemory)))
	c.at, c.worst = now, Signals{}
	return c.factor != before
}
