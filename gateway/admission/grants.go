package admission

import (
	"math"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// holdOffer is how long an offer keeps its room unconfirmed.
	holdOffer = 2 * time.Second
	// grantGrace is how long a confirmed grant lives after its last slot.
	grantGrace = 15 * time.Second
	// together: drains that ask within it share the free rate evenly.
	together = 2 * time.Second
	// slack over the pace that was asked for: a drain should not miss its end by one
	// late answer.
	slack = 1.1
	// maxGrants bounds the grants held; a drain needs about one an edge.
	maxGrants = 4096
	// startDelay is the earliest start of an offer: its confirmation is on the way.
	startDelay = 100 * time.Millisecond
)

// Why an offer is nothing, or less than was asked for.
const (
	reasonFull     = "full"
	reasonDraining = "draining"
	reasonRate     = "rate"
)

// Receiver is what an offer depends on beside the grants themselves.
type Receiver struct {
	Headroom        int     // conns that could come now, grants not yet taken off
	MovedPerSecond  float64 // the moved lane
	FreshPerSecond  float64 // the slower one of the lanes by which who cannot move comes back
	Region          string  // the receiver's
	Draining        bool
	Drains          int // edges that are known to be leaving; 0: only those who ask
	CriticalReserve int
	ForeignPercent  int
}

// grantKey names one request of one edge.
type grantKey struct {
	operation, edge string
	number          uint32
}

// asker is one edge's part in an operation.
type asker struct{ operation, edge string }

// grant is one answer. used <= movable.
//
//	offered --Confirm--> confirmed --15 s after the last slot--> gone
//	   \------------------2 s-----------------------------------> gone
type grant struct {
	key       grantKey
	offer     *gatewayv1.GrantOffer // repeated word for word
	offered   time.Time
	confirmed bool
	stranger  bool // of another region
	movable   int
	unmovable int
	used      int // movable ones admitted
	reserved  int // movable ones in the waiting room; used + reserved <= movable
	expires   time.Time
	from      time.Time // unmovable ones come evenly in [from, until]
	until     time.Time
}

// outstanding is the room that g holds.
func (g *grant) outstanding(now time.Time) int { return g.movable - g.used + g.expected(now) }

// expected is how many of those who cannot move have still to come. They cannot be
// told from others, so they are taken to come evenly.
func (g *grant) expected(now time.Time) int {
	if !g.confirmed || !now.After(g.from) {
		return g.unmovable
	}
	whole, left := g.until.Sub(g.from), g.until.Sub(now)
	if left <= 0 || whole <= 0 {
		return 0
	}
	return int(math.Ceil(float64(g.unmovable) * float64(left) / float64(whole)))
}

// running says that its rates are still in use.
func (g *grant) running(now time.Time) bool {
	return !g.confirmed || now.Before(g.until)
}

// Grants is the receiver's side of a drain.
type Grants struct {
	grants map[grantKey]*grant
	order  []*grant // by the time of the offer
	asked  map[asker]time.Time

	strangers strangers
}

// NewGrants has none.
func NewGrants() *Grants {
	return &Grants{grants: make(map[grantKey]*grant), asked: make(map[asker]time.Time)}
}

// Outstanding is the room that grants hold, offers included.
func (s *Grants) Outstanding(now time.Time) int {
	s.expire(now)
	n := 0
	for _, g := range s.grants {
		n += g.outstanding(now)
	}
	return n
}

// Confirmed is the room of confirmed grants whose clients have not come.
func (s *Grants) Confirmed(now time.Time) int {
	s.expire(now)
	n := 0
	for _, g := range s.grants {
		if g.confirmed {
			n += g.outstanding(now)
		}
	}
	return n
}

// Offer answers a request. A repeat gets the same answer as long as it is held.
func (s *Grants) Offer(r *gatewayv1.GrantRequest, to Receiver, now time.Time) *gatewayv1.GrantOffer {
	s.expire(now)
	key := grantKey{r.Operation, r.Edge, r.Number}
	if g := s.grants[key]; g != nil && !to.Draining {
		return g.offer
	}
	offer := &gatewayv1.GrantOffer{Operation: r.Operation, Edge: r.Edge, Number: r.Number}
	switch {
	case to.Draining:
		offer.Reason = reasonDraining
		return offer
	case len(s.grants) >= maxGrants:
		offer.Reason = reasonRate
		return offer
	}
	me := asker{r.Operation, r.Edge}
	s.asked[me] = now
	s.fill(offer, r, to, now)
	if offer.Movable+offer.Unmovable == 0 {
		return offer // nothing is held, so the next try may get more
	}
	g := &grant{
		key: key, offer: offer, offered: now, expires: now.Add(holdOffer),
		movable: int(offer.Movable), unmovable: int(offer.Unmovable), stranger: r.Region != to.Region,
	}
	s.grants[key] = g
	s.order = append(s.order, g)
	return offer
}

// fill decides counts by the headroom and rates by what other drains have left.
func (s *Grants) fill(o *gatewayv1.GrantOffer, r *gatewayv1.GrantRequest, to Receiver, now time.Time) {
	free := s.freeFor(r.Region, to, now)
	drains := s.drains(to, now)
	if drains > 1 { // of what is free now, and was given to those beside whom it asks
		free = min(free, (free+s.recent(now, asker{r.Operation, r.Edge}))/drains)
	}
	// Critical clients may fill all of it, the others leave the reserve to them.
	critical := min(int(r.Critical), int(r.Movable))
	open := max(free-to.CriticalReserve, 0)
	movable := min(critical, free)
	movable += min(int(r.Movable)-critical, max(open-movable, 0))
	unmovable := min(int(r.Unmovable), max(open-movable, 0))
	if movable < int(r.Movable) || unmovable < int(r.Unmovable) {
		o.Reason = reasonFull
	}
	mine := asker{r.Operation, r.Edge}
	movedFree, movedRecent := s.rates(to.MovedPerSecond, mine, now, movedRate)
	freshFree, freshRecent := s.rates(to.FreshPerSecond, mine, now, freshRate)
	window := max(time.Duration(r.WindowMs)*time.Millisecond, time.Second)
	movableWindow := window
	if r.MovableWindowMs > 0 {
		movableWindow = min(window, max(time.Duration(r.MovableWindowMs)*time.Millisecond, time.Second))
	}
	o.MovablePerSecond = pace(movable, movableWindow, movedFree, movedRecent, drains)
	o.UnmovablePerSecond = pace(unmovable, window, freshFree, freshRecent, drains)
	if o.MovablePerSecond == 0 && movable > 0 || o.UnmovablePerSecond == 0 && unmovable > 0 {
		o.Reason = reasonRate
	}
	if o.MovablePerSecond > 0 {
		o.Movable = uint32(movable)
	}
	if o.UnmovablePerSecond > 0 {
		o.Unmovable = uint32(unmovable)
	}
	o.StartMs = uint32(startDelay.Milliseconds())
}

// drains is among how many the free rate is divided.
func (s *Grants) drains(to Receiver, now time.Time) int {
	n := 0
	for _, at := range s.asked {
		if now.Sub(at) < together {
			n++
		}
	}
	return max(n, to.Drains, 1)
}

// recent is the room offered within the last moments to other drains.
func (s *Grants) recent(now time.Time, but asker) int {
	n := 0
	for _, g := range s.grants {
		if now.Sub(g.offered) < together && (asker{g.key.operation, g.key.edge}) != but {
			n += g.movable + g.unmovable
		}
	}
	return n
}

func movedRate(o *gatewayv1.GrantOffer) float64 { return o.MovablePerSecond }
func freshRate(o *gatewayv1.GrantOffer) float64 { return o.UnmovablePerSecond }

// rates returns what is free of a rate, and what of the used part others got within
// the last moments.
func (s *Grants) rates(whole float64, but asker, now time.Time, rate func(*gatewayv1.GrantOffer) float64) (free, recent float64) {
	free = whole
	for _, g := range s.grants {
		if !g.running(now) {
			continue
		}
		free -= rate(g.offer)
		if now.Sub(g.offered) < together && (asker{g.key.operation, g.key.edge}) != but {
			recent += rate(g.offer)
		}
	}
	return max(free, 0), recent
}

// pace is the rate for n clients in window: no more than they need, than an even
// share, and than is free. A lone asker who needs more than half leaves the other half
// to whoever asks next, and may ask again.
func pace(n int, window time.Duration, free, recent float64, drains int) float64 {
	if n == 0 {
		return 0
	}
	share := (free + recent) / float64(max(drains, 2))
	need := max(float64(n)*slack/window.Seconds(), minPace)
	rate := min(need, share, free)
	if rate < minPace {
		return 0
	}
	return rate
}

// minPace: less is not worth a grant.
const minPace = 0.1

// Confirm keeps an offer, or a part of it; zero gives it all back. A repeat is
// harmless. What was given back stays so: its room may be another's by now.
func (s *Grants) Confirm(c *gatewayv1.GrantConfirm, now time.Time) *gatewayv1.GrantConfirmed {
	s.expire(now)
	g := s.grants[grantKey{c.Operation, c.Edge, c.Number}]
	if g == nil {
		return &gatewayv1.GrantConfirmed{Held: c.Movable+c.Unmovable == 0}
	}
	g.movable = max(min(int(c.Movable), g.movable), g.used+g.reserved)
	g.unmovable = min(int(c.Unmovable), g.unmovable)
	if g.movable+g.unmovable == 0 {
		s.drop(g)
		return &gatewayv1.GrantConfirmed{Held: true}
	}
	if !g.confirmed {
		g.confirmed, g.from = true, now
		g.until = now.Add(time.Duration(c.LastSlotMs) * time.Millisecond)
		g.expires = g.until.Add(grantGrace)
	}
	return &gatewayv1.GrantConfirmed{Held: true}
}

// take reserves a place for a client of an operation that comes from an edge: of that
// edge's grants first, then of the operation's: behind one address the grants are
// one allowance. nil: none is left.
func (s *Grants) take(m *Move, now time.Time) *grant {
	s.expire(now)
	var of *grant
	for _, g := range s.order {
		if !g.confirmed || g.used+g.reserved >= g.movable || g.key.operation != m.Operation {
			continue
		}
		if g.key.edge == m.Edge {
			of = g
			break
		}
		if of == nil && m.Anywhere {
			of = g
		}
	}
	if of != nil {
		of.reserved++
	}
	return of
}

// giveBack undoes take: the client hung up before it was admitted.
func (s *Grants) giveBack(g *grant) {
	if g != nil {
		g.reserved--
	}
}

// came turns a reservation into a client that is here.
func (s *Grants) came(g *grant) {
	if g != nil {
		g.reserved--
		g.used++
	}
}

func (s *Grants) expire(now time.Time) {
	kept := s.order[:0]
	for _, g := range s.order {
		if now.Before(g.expires) && s.grants[g.key] == g {
			kept = append(kept, g)
			continue
		}
		if g.stranger {
			s.strangers.add(g.came(now), now)
		}
		delete(s.grants, g.key)
	}
	clear(s.order[len(kept):])
	s.order = kept
	for a, at := range s.asked {
		if now.Sub(at) >= together {
			delete(s.asked, a)
		}
	}
}

func (s *Grants) drop(g *grant) {
	delete(s.grants, g.key)
	for i, have := range s.order {
		if have == g {
			s.order = append(s.order[:i], s.order[i+1:]...)
			return
		}
	}
}
