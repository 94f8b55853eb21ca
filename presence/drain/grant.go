package drain

import (
	"maps"
	"math"
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	askEach     = 500 * time.Millisecond  // a question without an answer is put again
	askTries    = 3                       // and given up
	confirmEach = 400 * time.Millisecond  // the same for confirmations
	offerLives  = 1800 * time.Millisecond // a receiver holds an offer for 2 s
	grantLives  = 15 * time.Second        // and a grant so long after its last slot
	slowest     = 0.05                    // of a granted rate: a receiver that shows less is as good as gone
)

// grantState is how far a grant has come.
//
//	asked --offer--> offered --confirmed--> held --used up, lapsed, given back--> (none)
//	  |                 |                     |
//	  +-- no answer ----+-- not held ---------+-- receiver gone --> (none)
type grantState uint8

const (
	grantAsked grantState = iota
	grantOffered
	grantHeld
)

// grant is room at one receiver, from the question on.
type grant struct {
	to     string
	number uint32
	round  int
	state  grantState
	sent   time.Time // of the last question or confirmation
	tries  int

	request *gatewayv1.GrantRequest
	keep    *gatewayv1.GrantConfirm
	born    time.Time // of the offer

	movable, unmovable         int // confirmed and not used
	movableRate, unmovableRate float64
	start, lapses              time.Time
	laneThen                   float64 // the receiver's moved lane at the offer; 0: not known
	scale                      float64 // of the rate, 1 unless its lane has become slower
	movePace, closePace        pace
	closeEvery                 time.Duration // from close to close, so that they fill the window
}

// rate is the granted pace of moves as the receiver can hold it now.
func (g *grant) rate() float64 { return g.movableRate * g.scale }

// moves is how many of the grant's moves have their slots before until.
func (g *grant) moves(now, until time.Time) int {
	return fit(g.movable, g.rate(), later(later(now, g.start), g.movePace.next), until)
}

// closes is the same for those who cannot move.
func (g *grant) closes(now, until time.Time) int {
	return fit(g.unmovable, g.unmovableRate, later(later(now, g.start), g.closePace.next), until)
}

func fit(n int, perSecond float64, from, until time.Time) int {
	if n <= 0 || !from.Before(until) {
		return 0
	}
	return min(n, int(until.Sub(from).Seconds()*perSecond)+1)
}

// Offer takes a receiver's answer.
func (p *Plan) Offer(now time.Time, o *gatewayv1.GrantOffer) []Action {
	p.now = now
	g := p.find(o.Edge, o.Number)
	if g == nil || g.state != grantAsked || p.ended {
		return nil
	}
	p.away = false
	if o.Movable < g.request.Movable || o.Unmovable < g.request.Unmovable {
		p.rest(g.to, o.Movable+o.Unmovable == 0)
	}
	g.born, g.start, g.scale = now, now.Add(ms(o.StartMs)), 1
	g.movableRate, g.unmovableRate = o.MovablePerSecond, o.UnmovablePerSecond
	left := max(p.lastMove.Sub(later(now, g.start)).Seconds(), Step.Seconds())
	if g.movableRate <= 0 {
		g.movableRate = float64(o.Movable) / left
	}
	if g.unmovableRate <= 0 {
		g.unmovableRate = float64(o.Unmovable) / left
	}
	// Room that clients have left meanwhile is not kept.
	g.movable = min(int(min(o.Movable, g.request.Movable)), p.counts.waiting())
	g.unmovable = min(int(min(o.Unmovable, g.request.Unmovable)), p.counts.Unmovable)
	if g.movable+g.unmovable == 0 {
		p.drop(g)
		return p.take()
	}
	if r := p.receivers[g.to]; r != nil {
		g.laneThen = r.MovedPerSecond
	}
	g.stagger(p.cfg.End)
	g.state, g.tries = grantOffered, 0
	last := now
	if g.movable > 0 {
		last = g.start.Add(time.Duration(float64(g.movable) / g.movableRate * float64(time.Second)))
	}
	if g.unmovable > 0 {
		last = later(last, p.cfg.End)
	}
	g.lapses = last.Add(grantLives)
	g.keep = &gatewayv1.GrantConfirm{
		Operation: p.cfg.Operation, Edge: p.cfg.Edge, Number: g.number,
		Movable: uint32(g.movable), Unmovable: uint32(g.unmovable), LastSlotMs: millis(last.Sub(now)),
	}
	p.confirm(g)
	return p.take()
}

// stagger chooses the first slots: grants of many receivers begin together, and in
// step they would let a crowd go at once, again and again.
func (g *grant) stagger(end time.Time) {
	const golden = 0.6180339887 // its multiples, modulo 1, are spread evenly however many there are
	_, part := math.Modf(float64(g.number) * golden)
	if g.movable > 0 {
		g.movePace.next = g.start.Add(time.Duration(part * float64(interval(g.movableRate))))
	}
	if g.unmovable > 0 {
		g.closeEvery = max(interval(g.unmovableRate), end.Sub(g.start)/time.Duration(g.unmovable))
		g.closePace.next = g.start.Add(time.Duration(part * float64(g.closeEvery)))
	}
}

// Confirmed takes what came of a confirmation.
func (p *Plan) Confirmed(now time.Time, edge string, number uint32, held bool) {
	p.now = now
	g := p.find(edge, number)
	switch {
	case g == nil || p.ended:
	case !held:
		p.drop(g)
		p.nextAsk = now
	case g.state == grantOffered:
		g.state = grantHeld
		p.granted += int(g.keep.Movable + g.keep.Unmovable)
	}
}

// Failed says that a question or a confirmation did not reach edge. away: the bus is
// away, so nobody can be asked.
func (p *Plan) Failed(now time.Time, edge string, number uint32, away bool) {
	p.now = now
	if g := p.find(edge, number); g != nil && g.state == grantAsked && !p.ended {
		p.away = p.away || away
		p.rest(edge, false)
		p.drop(g)
	}
}

// confirm sends what is kept of an offer, again until it is confirmed.
func (p *Plan) confirm(g *grant) {
	g.sent = p.now
	g.tries++
	p.out = append(p.out, Action{Kind: Confirm, To: g.to, Keep: g.keep})
}

// giveBack tells the receiver that only what was used is still to come.
func (p *Plan) giveBack(g *grant) {
	if g.state == grantAsked || g.movable+g.unmovable == 0 {
		return
	}
	p.out = append(p.out, Action{Kind: Confirm, To: g.to, Keep: &gatewayv1.GrantConfirm{
		Operation: g.keep.Operation, Edge: g.keep.Edge, Number: g.number,
		Movable: g.keep.Movable - uint32(g.movable), Unmovable: g.keep.Unmovable - uint32(g.unmovable),
		LastSlotMs: 0,
	}})
}

func (p *Plan) find(to string, number uint32) *grant {
	for _, g := range p.grants {
		if g.to == to && g.number == number {
			return g
		}
	}
	return nil
}

func (p *Plan) drop(gone *grant) {
	for i, g := range p.grants {
		if g == gone {
			p.grants = append(p.grants[:i:i], p.grants[i+1:]...)
			return
		}
	}
}

// tend puts questions again, lets go of what has no answer or has lapsed, and slows
// grants of receivers that have become slower.
func (p *Plan) tend() {
	for _, g := range append([]*grant(nil), p.grants...) {
		r := p.receivers[g.to]
		waited := p.now.Sub(g.sent)
		switch {
		case r == nil:
			p.drop(g)
			p.nextAsk = p.now
		case r.Draining || r.Silent:
			p.giveBack(g)
			p.drop(g)
			p.nextAsk = p.now
		case g.state == grantAsked && waited >= askEach:
			if g.tries == askTries {
				p.rest(g.to, true)
				p.drop(g)
				continue
			}
			g.sent = p.now
			g.tries++
			p.out = append(p.out, Action{Kind: Ask, To: g.to, Request: g.request})
		case g.state == grantOffered && p.now.Sub(g.born) >= offerLives:
			p.drop(g)
		case g.state == grantOffered && waited >= confirmEach:
			p.confirm(g)
		case g.state == grantHeld && (g.movable+g.unmovable <= 0 || p.now.After(g.lapses)):
			p.drop(g)
		case g.state == grantHeld && g.laneThen > 0 && r.MovedPerSecond > 0:
			g.scale = min(max(r.MovedPerSecond/g.laneThen, slowest), 1)
		}
	}
}

// recall has those told anew who were sent to a receiver that is gone.
func (p *Plan) recall() {
	for _, to := range slices.Sorted(maps.Keys(p.sentTo)) {
		if r := p.receivers[to]; r == nil || r.Draining || r.Silent {
			delete(p.sentTo, to)
			p.out = append(p.out, Action{Kind: Recall, To: to})
			p.nextAsk = p.now
		}
	}
}

func ms(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

func millis(d time.Duration) uint32 { return uint32(max(d, 0).Milliseconds()) }
