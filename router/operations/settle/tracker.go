// Package settle measures how a region comes to rest: it takes what edges tell in
// windows of 200 ms, the members that were lost and the operations that run, keeps
// ten minutes, and finds incidents: when they began, when the rate of new conns
// was the usual one again, who was displaced and who came back.
//
// A router feeds one Tracker and asks it; there is no I/O, clock, goroutine or lock
// in it: time is passed in, calls must not overlap.
//
// Invariants: a window counts once, by (edge, incarnation, start), however often and
// in whatever order it comes; back <= displaced for each cause; p50 <= p95 <= p99.
// Windows are put at this router's time: an edge's clock may be wrong by any
// amount, but should not jump.
//
// Limits: maxRegions, maxEdges, maxCauses and maxPast below, 3,000 windows a region
// (0.3 MB) and maxNames edge names in them; past a limit things are left out and
// counted (Dropped).
//
// Left out on purpose: clients without tickets (they are in the rate only), and
// incidents that last over nine minutes (told as not settled).
package settle

import (
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	windowMS  = 200
	perSecond = 1000 / windowMS
	kept      = 600 * perSecond // windows: ten minutes

	// lag is how long after a window's end all edges have told it: a figure a second,
	// and some.
	lag = 2 * perSecond
	// forget is when an edge is forgotten that was not heard.
	forget = 10 * time.Minute

	maxRegions = 32
	maxEdges   = 4_096   // incarnations within ten minutes
	maxNames   = 100_000 // of edges in the windows of a region
	maxCauses  = 64      // of the last nine minutes of a region
	maxPast    = 64      // incidents of a region that are over nine minutes old
)

// Tracker keeps regions, edges and incidents. See the package comment.
type Tracker struct {
	regions map[string]*region
	edges   map[edgeKey]*edge
	named   map[string][]*cause // by the edge that tickets name
	ops     []*gatewayv1.Operation
	dropped uint64
}

// New makes an empty Tracker.
func New() *Tracker {
	return &Tracker{regions: map[string]*region{}, edges: map[edgeKey]*edge{}, named: map[string][]*cause{}}
}

// Dropped counts windows, edges, regions and causes that were left out: too old,
// too many.
func (t *Tracker) Dropped() uint64 { return t.dropped }

// number is that of the window of a moment.
func number(now time.Time) int64 { return now.UnixMilli() / windowMS }

// Hear takes a load figure; those of routers are ignored. It keeps nothing of f.
func (t *Tracker) Hear(f *gatewayv1.LoadFigure, now time.Time) {
	if f.Role != gatewayv1.Role_ROLE_EDGE {
		return
	}
	e := t.edge(f)
	if e == nil {
		t.dropped++
		return
	}
	r := e.region
	at := number(now)
	e.heard = now
	if !e.left { // else a last word, of which the windows count
		t.returned(e)
		r.conns += int64(f.Conns) - e.conns
		r.catching += int64(f.CatchingUp) - e.catching
		e.conns, e.catching = int64(f.Conns), int64(f.CatchingUp)
		r.sample(at)
	}
	e.clock.hear(f.Windows, now)
	for _, w := range f.Windows {
		if !e.clock.fresh(w.StartMs) {
			continue
		}
		n := e.clock.place(w.StartMs)
		if n <= at-kept || n > at+perSecond {
			t.dropped++
			continue
		}
		t.dropped += r.add(n, w)
		t.move(e, n, w)
		for name, count := range w.From {
			t.cameBack(r, name, n, count)
		}
	}
}

// Gone says that a member is no more: it left in order, or was lost. Lost conns
// are those of its last figure.
func (t *Tracker) Gone(id string, incarnation uint64, left bool, now time.Time) {
	e := t.edges[edgeKey{id, incarnation}]
	if e == nil || e.gone {
		return
	}
	conns := e.conns
	e.leave(number(now))
	if e.left = left; left || conns == 0 {
		return
	}
	c := &cause{kind: kindLost, id: id, start: number(e.heard), lost: uint64(conns)}
	c.shares = map[string]*share{id: {}}
	t.begin(e.region, c)
	e.lost = c
}

// returned takes back the loss of an edge that speaks again.
func (t *Tracker) returned(e *edge) {
	if c := e.lost; c != nil {
		t.unname(c)
		for _, r := range t.regions {
			r.causes = slices.DeleteFunc(r.causes, func(x *cause) bool { return x == c || x.original == c })
		}
	}
	e.gone, e.lost = false, nil
}

// Operations takes the drains, evacuations and rebalances of the cluster. Not to be
// changed afterwards.
func (t *Tracker) Operations(ops []*gatewayv1.Operation) { t.ops = ops }

// Regions are the names of those heard of, in order.
func (t *Tracker) Regions() []string {
	names := make([]string, 0, len(t.regions))
	for name := range t.regions {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Running is how many incidents of a region have not settled.
func (t *Tracker) Running(name string) (n int) {
	if r := t.regions[name]; r != nil {
		for _, i := range r.open {
			if i.SettledMs == 0 {
				n++
			}
		}
	}
	return n
}

// Incidents of a region as of the last Step, the newest first; "": of all. They are
// shared: read only.
func (t *Tracker) Incidents(name string) []*routerv1.Incident {
	var all []*routerv1.Incident
	for _, r := range t.regions {
		if name == "" || r.name == name {
			all = append(all, r.past...)
			all = append(all, r.open...)
		}
	}
	slices.SortStableFunc(all, func(a, b *routerv1.Incident) int {
		switch {
		case a.StartMs != b.StartMs:
			return int(int64(b.StartMs) - int64(a.StartMs))
		case a.Region < b.Region:
			return -1
		}
		return 1
	})
	return all
}

// Peak is the new conns in the busiest second of a region that lies in [fromMS, toMS),
// as far as windows are kept.
func (t *Tracker) Peak(name string, fromMS, toMS uint64) float64 {
	r := t.regions[name]
	if r == nil {
		return 0
	}
	most := uint64(0)
	from, to := int64(fromMS/windowMS), int64(toMS/windowMS)
	for n := max(from, to-kept); n < to; n++ {
		most = max(most, r.sum(n, min(n+perSecond, to), arrivals))
	}
	return float64(most)
}

// Arrivals are the windows of a region that are not empty, the oldest first, as far
// as all edges have told them.
func (t *Tracker) Arrivals(name string, sinceMS uint64, now time.Time) []*routerv1.ArrivalWindow {
	r := t.regions[name]
	if r == nil {
		return nil
	}
	end := number(now) - lag
	var windows []*routerv1.ArrivalWindow
	for n := max(end-kept+1, int64(sinceMS/windowMS)); n < end; n++ {
		if s := r.slot(n); s != nil && s.counts != (counts{}) {
			windows = append(windows, s.message())
		}
	}
	return windows
}

// forgetEdges drops those that have not been heard for long.
func (t *Tracker) forgetEdges(now time.Time) {
	for key, e := range t.edges {
		if now.Sub(e.heard) > forget {
			e.leave(number(now))
			delete(t.edges, key)
		}
	}
}
