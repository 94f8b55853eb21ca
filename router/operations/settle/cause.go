package settle

import (
	"cmp"
	"slices"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// The kinds of causes, as the API has them.
const (
	kindOperation = "operation"
	kindLost      = "lost"
	kindUnknown   = "unknown"
)

// Kinds are all kinds of causes.
var Kinds = [...]string{kindOperation, kindLost, kindUnknown}

const (
	// backWithin is how long after the start who is not back never comes back.
	backWithin = 300 * perSecond
	// sameOperation is how long an edge whose operation is not known may be silent
	// between two clients that it tells to go.
	sameOperation = 60 * perSecond
	// sameLoss is the pause after which a loss of conns is another one.
	sameLoss = 5 * perSecond
	// lossLeast and lossShare: more conns lost in one second than this many and this
	// part of a region's are an incident.
	lossLeast = 50
	lossShare = 100
	// awayLeast is how many clients of an edge of another region make its cause one
	// of this region too.
	awayLeast = 50
)

// cause is why conns were lost: an operation, a lost member, or something unknown.
type cause struct {
	kind     string
	id       string
	unnamed  bool  // an operation whose record is not known yet: id is the edge
	start    int64 // window
	last     int64 // operation: last window in which clients were told; unknown: of the loss
	lost     uint64
	shares   map[string]*share  // by the edges concerned; nil: unknown
	back     map[*region]uint64 // resumes that name one of them, within backWithin
	first    map[*region]int64  // window of the first of those
	usual    float64            // new conns a second in the five minutes before
	settled  bool               // told by Step
	lapsed   bool               // told by Step
	original *cause             // of a region that clients went to: the cause in the region they left
}

// share is what an operation did at one edge.
type share struct{ told, left, shut uint64 }

// displaced is who had to go somewhere else. Who was told and then closed with 4001
// is in told and shut both; when the operation is over, left + shut are all of them.
func (c *cause) displaced(r *region) uint64 {
	switch {
	case c.original != nil:
		return c.original.displaced(r)
	case c.kind == kindLost:
		return c.lost
	case c.kind == kindUnknown:
		return r.sum(c.start, c.last+1, lost)
	}
	total := uint64(0)
	for _, s := range c.shares {
		total += max(s.told, s.left+s.shut)
	}
	return total
}

// begin files a cause and finds who has come back before it was known.
func (t *Tracker) begin(r *region, c *cause) {
	if len(r.causes) >= maxCauses {
		t.dropped++
		return
	}
	c.back, c.first = map[*region]uint64{}, map[*region]int64{}
	r.causes = append(r.causes, c)
	for name := range c.shares {
		t.name(c, name)
	}
}

// name makes resumes that name an edge count for a cause, those too that came before.
func (t *Tracker) name(c *cause, name string) {
	t.named[name] = append(t.named[name], c)
	t.lookBack(c, name)
	if c.kind != kindOperation {
		return
	}
	var before *cause // who counted until now for it may count for c
	for _, p := range t.named[name] {
		if p.kind == kindOperation && p.start < c.start && (before == nil || p.start > before.start) {
			before = p
		}
	}
	if before != nil {
		before.back, before.first = map[*region]uint64{}, map[*region]int64{}
		for other := range before.shares {
			t.lookBack(before, other)
		}
	}
}

// lookBack counts those who came back and name an edge, from the windows.
func (t *Tracker) lookBack(c *cause, name string) {
	for _, r := range t.regions {
		for n := c.start; n < c.start+min(backWithin, kept); n++ {
			if s := r.slot(n); s != nil && s.from[name] > 0 && t.counts(c, name, n) {
				c.cameBack(r, n, s.from[name])
			}
		}
	}
}

// counts says that who comes back in window n and names an edge counts for c: of the
// operations of that edge, for the newest that had begun.
func (t *Tracker) counts(c *cause, name string, n int64) bool {
	return c.kind != kindOperation || !slices.ContainsFunc(t.named[name], func(x *cause) bool {
		return x.kind == kindOperation && x.start > c.start && x.start <= n
	})
}

// cameBack counts clients whose tickets name an edge.
func (t *Tracker) cameBack(r *region, name string, n int64, count uint32) {
	for _, c := range t.named[name] {
		if t.counts(c, name, n) {
			c.cameBack(r, n, count)
		}
	}
}

func (c *cause) cameBack(r *region, n int64, count uint32) {
	if n < c.start || n >= c.start+backWithin || count == 0 {
		return
	}
	c.back[r] += uint64(count)
	if first, ok := c.first[r]; !ok || n < first {
		c.first[r] = n
	}
}

// unname ends the counting for a cause that is over.
func (t *Tracker) unname(c *cause) {
	for name := range c.shares {
		left := slices.DeleteFunc(t.named[name], func(other *cause) bool { return other == c })
		if t.named[name] = left; len(left) == 0 {
			delete(t.named, name)
		}
	}
}

// move takes what a window tells of an operation at its edge.
func (t *Tracker) move(e *edge, n int64, w *gatewayv1.Window) {
	if w.Told == 0 && w.Shut == 0 {
		if w.Left > 0 && e.leaving != nil {
			e.leaving.shares[e.id].left += uint64(w.Left)
		}
		return
	}
	c := t.operation(e, n)
	if c == nil {
		return
	}
	s := c.shares[e.id]
	s.told += uint64(w.Told)
	s.left += uint64(w.Left)
	s.shut += uint64(w.Shut)
	c.start, c.last = min(c.start, n), max(c.last, n)
}

// operation is the cause for clients told to go at e in window n.
func (t *Tracker) operation(e *edge, n int64) *cause {
	op := t.running(e, n)
	c := e.leaving
	switch {
	case op == nil:
		if c != nil && n >= c.start-sameOperation && n <= c.last+sameOperation {
			return c
		}
		c = &cause{kind: kindOperation, id: e.id, unnamed: true, start: n, last: n, shares: map[string]*share{e.id: {}}}
		return t.leave(e, c)
	case c != nil && c.id == op.Id:
		return c
	case c != nil && c.unnamed && n <= c.last+sameOperation: // its record came later than its deeds
		if had := e.region.cause(op.Id); had != nil {
			t.merge(e.region, had, c)
			e.leaving = had
			return had
		}
		c.id, c.unnamed = op.Id, false
		return c
	}
	if had := e.region.cause(op.Id); had != nil {
		if had.shares[e.id] == nil {
			had.shares[e.id] = &share{}
			t.name(had, e.id)
		}
		e.leaving = had
		return had
	}
	return t.leave(e, &cause{kind: kindOperation, id: op.Id, start: n, last: n, shares: map[string]*share{e.id: {}}})
}

// leave files an operation of an edge; nil: there is no room for it.
func (t *Tracker) leave(e *edge, c *cause) *cause {
	t.begin(e.region, c)
	if c.back == nil {
		return nil
	}
	e.leaving = c
	return c
}

// merge moves what c did into the cause of the same operation.
func (t *Tracker) merge(r *region, into, c *cause) {
	t.unname(c)
	r.causes = slices.DeleteFunc(r.causes, func(other *cause) bool { return other == c })
	into.start, into.last = min(into.start, c.start), max(into.last, c.last)
	for id, s := range c.shares {
		if have := into.shares[id]; have != nil {
			have.told, have.left, have.shut = have.told+s.told, have.left+s.left, have.shut+s.shut
			continue
		}
		into.shares[id] = s
		t.name(into, id)
	}
}

func (r *region) cause(operation string) *cause {
	for _, c := range r.causes {
		if c.kind == kindOperation && c.id == operation {
			return c
		}
	}
	return nil
}

// running is the operation that an edge takes part in at window n, with some seconds
// to spare for clocks; the newest of several.
func (t *Tracker) running(e *edge, n int64) *gatewayv1.Operation {
	const spareMS = 5_000
	at := uint64(n) * windowMS
	var found *gatewayv1.Operation
	for _, op := range t.ops {
		mine := op.Node == e.id
		if op.Kind == gatewayv1.OperationKind_OPERATION_KIND_EVACUATE {
			mine = op.Region == e.region.name
		}
		over := op.EndedMs != 0 && op.EndedMs+spareMS < at
		if mine && !over && op.StartedMs <= at+spareMS && (found == nil || op.StartedMs > found.StartedMs) {
			found = op
		}
	}
	return found
}

// findLosses looks for seconds in which many conns were lost, again over the last
// windows, since some come late.
func (t *Tracker) findLosses(r *region, end int64) {
	const again = 60 * perSecond
	span := r.sum(end-again-perSecond, end-again, lost)
	for n := end - again; n < end; n++ {
		span += r.sum(n, n+1, lost)
		span -= r.sum(n-perSecond, n-perSecond+1, lost)
		if span <= max(lossLeast, uint64(max(r.conns, 0)+int64(span))/lossShare) {
			continue
		}
		first := n - perSecond + 1
		for r.sum(first, first+1, lost) == 0 {
			first++
		}
		t.loss(r, first, n)
	}
}

func (t *Tracker) loss(r *region, first, last int64) {
	for _, c := range r.causes {
		if c.kind == kindUnknown && last >= c.start-sameLoss && first <= c.last+sameLoss {
			c.start, c.last = min(c.start, first), max(c.last, last)
			return
		}
	}
	t.begin(r, &cause{kind: kindUnknown, start: first, last: last})
}

// findAway makes causes of other regions causes of the regions that their clients
// went to, from the first of them on.
func (t *Tracker) findAway() {
	for _, r := range t.regions { // who came first and counted for an older operation of the edge
		r.causes = slices.DeleteFunc(r.causes, func(c *cause) bool { return c.original != nil && c.original.back[r] < awayLeast })
	}
	for _, r := range t.regions {
		for _, c := range r.causes {
			if c.original != nil {
				continue
			}
			for to, n := range c.back {
				if to == r || n < awayLeast || slices.ContainsFunc(to.causes, func(x *cause) bool { return x.original == c }) {
					continue
				}
				if len(to.causes) >= maxCauses {
					t.dropped++
					continue
				}
				to.causes = append(to.causes, &cause{
					kind: c.kind, id: c.id, start: c.first[to], last: c.first[to], shares: c.shares, original: c,
				})
			}
		}
	}
}

func byStart(a, b *cause) int {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id))
}
