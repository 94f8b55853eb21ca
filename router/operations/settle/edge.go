package settle

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

type edgeKey struct {
	id          string
	incarnation uint64
}

// edge is one incarnation of an edge.
type edge struct {
	id       string
	region   *region
	heard    time.Time // last figure
	conns    int64     // in it
	catching int64     // in it
	gone     bool
	left     bool   // in order; gone
	lost     *cause // of the loss of this incarnation
	clock    clock
	leaving  *cause // the newest operation that told its clients to go
}

func (t *Tracker) edge(f *gatewayv1.LoadFigure) *edge {
	key := edgeKey{f.Id, f.Incarnation}
	if e := t.edges[key]; e != nil {
		return e
	}
	r := t.regions[f.Region]
	if r == nil {
		if len(t.regions) >= maxRegions {
			return nil
		}
		r = newRegion(f.Region)
		t.regions[f.Region] = r
	}
	if len(t.edges) >= maxEdges {
		return nil
	}
	e := &edge{id: f.Id, region: r}
	t.edges[key] = e
	return e
}

// leave takes an edge out of the sums.
func (e *edge) leave(n int64) {
	e.gone = true
	e.region.conns -= e.conns
	e.region.catching -= e.catching
	e.conns, e.catching = 0, 0
	e.region.sample(n)
}

// clock puts an edge's windows at this router's time and knows which it has seen.
type clock struct {
	newest int64 // number, by the edge's clock, of its newest window
	seen   [kept/64 + 1]uint64
	delays [16]int64 // ms from the end of the newest window to its figure, the last ones
	heard  int
	shift  int64 // ms, added to the edge's time
}

const (
	// shiftFrom is the least difference that is corrected: a figure comes up to a
	// window's length after the end of its newest window.
	shiftFrom = windowMS
	// shiftMost keeps the arithmetic sane, whatever a clock says.
	shiftMost = int64(1) << 52
)

// hear learns how far the edge's clock is off: the smallest delay of the last
// figures, less half a window. What is late in between is late, not skew.
func (c *clock) hear(windows []*gatewayv1.Window, now time.Time) {
	end := int64(0)
	for _, w := range windows {
		end = max(end, int64(min(w.StartMs, uint64(shiftMost)))+windowMS)
	}
	if end == 0 {
		return
	}
	c.delays[c.heard%len(c.delays)] = now.UnixMilli() - end
	c.heard++
	least := c.delays[0]
	for _, d := range c.delays[:min(c.heard, len(c.delays))] {
		least = min(least, d)
	}
	least -= windowMS / 2
	switch {
	case least > -shiftFrom && least < shiftFrom:
		c.shift = 0
	case c.heard == 1, least < c.shift-shiftFrom, least > c.shift+shiftFrom:
		c.shift = least
	}
}

// fresh says that a window is seen for the first time, and remembers it.
func (c *clock) fresh(startMS uint64) bool {
	n := int64(min(startMS, uint64(shiftMost))) / windowMS
	switch {
	case c.newest == 0 || n >= c.newest+kept:
		c.newest = n
		clear(c.seen[:])
	case n <= c.newest-kept:
		return false
	}
	for ; c.newest < n; c.newest++ {
		word, bit := c.bit(c.newest + 1)
		*word &^= bit
	}
	word, bit := c.bit(n)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

func (c *clock) bit(n int64) (*uint64, uint64) {
	i := uint64(n % kept)
	return &c.seen[i/64], 1 << (i % 64)
}

// place is the number of a window by this router's clock.
func (c *clock) place(startMS uint64) int64 {
	return (int64(min(startMS, uint64(shiftMost))) + c.shift) / windowMS
}
