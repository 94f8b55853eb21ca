package client

import "time"

// clock measures by the larger of monotonic and wall-clock time, so that a machine
// that slept knows it. It never goes back. Its owner serialises.
type clock struct {
	base    time.Time
	elapsed time.Duration
}

func newClock() *clock { return &clock{base: time.Now()} }

func (c *clock) now() time.Time {
	t := time.Now()
	monotonic := t.Sub(c.base)
	wall := t.Round(0).Sub(c.base.Round(0))
	c.elapsed = max(c.elapsed, monotonic, wall)
	return c.base.Add(c.elapsed)
}
