package settle

import (
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// region is ten minutes of one region and its incidents.
type region struct {
	name     string
	ring     []slot
	names    int   // in ring; <= maxNames
	conns    int64 // of the newest figures of its edges
	catching int64 // the same
	causes   []*cause
	open     []*routerv1.Incident // made of causes, by start; made anew in every Step
	past     []*routerv1.Incident // by start
}

// slot is window n, summed over the edges.
type slot struct {
	n int64
	counts
	sampled  bool
	catching int64 // most of the sums known in this window, if sampled
	from     map[string]uint32
}

type counts struct {
	moved, resumed, fresh, refused, reset, lost, left, shut, closed, told, caughtUp uint32
}

func (c *counts) arrivals() uint64 { return uint64(c.moved) + uint64(c.resumed) + uint64(c.fresh) }

func newRegion(name string) *region {
	return &region{name: name, ring: make([]slot, kept)}
}

// slot returns window n; nil: nothing is known of it.
func (r *region) slot(n int64) *slot {
	if s := &r.ring[int(n%kept)]; s.n == n {
		return s
	}
	return nil
}

// make returns window n, emptied if it held an older one; nil: it is too old.
func (r *region) make(n int64) *slot {
	s := &r.ring[int(n%kept)]
	switch {
	case s.n > n:
		return nil
	case s.n < n:
		r.names -= len(s.from)
		*s = slot{n: n}
	}
	return s
}

// add sums a window in and returns what had to be left out.
func (r *region) add(n int64, w *gatewayv1.Window) (dropped uint64) {
	s := r.make(n)
	if s == nil {
		return 1
	}
	s.moved += w.Moved
	s.resumed += w.Resumed
	s.fresh += w.Fresh
	s.refused += w.Refused
	s.reset += w.Reset_
	s.lost += w.Lost
	s.left += w.Left
	s.shut += w.Shut
	s.closed += w.Closed
	s.told += w.Told
	s.caughtUp += w.CaughtUp
	for name, count := range w.From {
		if _, named := s.from[name]; !named {
			if r.names >= maxNames {
				dropped++
				continue
			}
			if s.from == nil {
				s.from = make(map[string]uint32, len(w.From))
			}
			r.names++
		}
		s.from[name] += count
	}
	return dropped
}

// sample notes how many are catching up now.
func (r *region) sample(n int64) {
	if s := r.make(n); s != nil {
		s.sampled, s.catching = true, max(s.catching, r.catching)
	}
}

// sum adds up windows [from, to).
func (r *region) sum(from, to int64, of func(*slot) uint64) (total uint64) {
	for n := from; n < to; n++ {
		if s := r.slot(n); s != nil {
			total += of(s)
		}
	}
	return total
}

func arrivals(s *slot) uint64 { return s.arrivals() }
func caughtUp(s *slot) uint64 { return uint64(s.caughtUp) }
func lost(s *slot) uint64     { return uint64(s.lost) }
func refused(s *slot) uint64  { return uint64(s.refused) + uint64(s.reset) }

func (s *slot) message() *routerv1.ArrivalWindow {
	return &routerv1.ArrivalWindow{
		StartMs: uint64(s.n) * windowMS, Moved: s.moved, Resumed: s.resumed, Fresh: s.fresh,
		Refused: s.refused, Reset_: s.reset, Lost: s.lost, Left: s.left, Shut: s.shut, Closed: s.closed,
		Told: s.told, CaughtUp: s.caughtUp,
	}
}
