package drain

import (
	"cmp"
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	askAgain  = 2 * time.Second // between rounds, and the rest of a receiver that gave less than asked
	restEmpty = 4 * time.Second // of one that gave nothing
	// roundsInARow follow each other at once, as long as somebody gives all that it is
	// asked for.
	roundsInARow = 3
	// leastPace of a whole drain, a second, if receivers grant it: a handful of clients
	// has no reason to use the whole window.
	leastPace = 10
)

// ask begins a round: what has no room yet is split over the receivers.
func (p *Plan) ask() {
	if p.now.Before(p.nextAsk) || p.asking() || !p.now.Before(p.lastMove) {
		return
	}
	movable, unmovable := p.uncovered(p.lastMove)
	if movable+unmovable == 0 {
		p.inARow = 0
		return
	}
	own, others := p.eligible()
	p.nextAsk = p.now.Add(askAgain)
	if p.inARow++; p.inARow < roundsInARow && len(own)+len(others) > 0 {
		p.nextAsk = p.now // who gave all that it was asked for may have more
	} else {
		p.inARow = 0
	}
	p.round++
	if p.cfg.OneAddress {
		if len(own) == 0 {
			own = others
		}
		p.askEvenly(own, movable, unmovable)
		return
	}
	movable, unmovable = p.askByHeadroom(own, movable, unmovable)
	p.askByHeadroom(others, movable, unmovable)
}

// asking says that a question or a confirmation waits for its answer.
func (p *Plan) asking() bool {
	return slices.ContainsFunc(p.grants, func(g *grant) bool { return g.state != grantHeld })
}

// uncovered is who has no slot before until.
func (p *Plan) uncovered(until time.Time) (movable, unmovable int) {
	movable, unmovable = p.counts.waiting(), p.counts.Unmovable
	for _, g := range p.grants {
		if g.state != grantHeld {
			continue
		}
		unmovable -= g.closes(p.now, p.cfg.End)
		if !p.cfg.OneAddress {
			movable -= g.moves(p.now, until)
		}
	}
	if p.cfg.OneAddress {
		for _, pool := range p.pools() {
			movable -= pool.moves(p.now, until)
		}
	}
	return max(movable, 0), max(unmovable, 0)
}

// eligible are the receivers that may be asked now, those of the own region apart,
// by id.
func (p *Plan) eligible() (own, others []*receiver) {
	for _, r := range p.receivers {
		switch {
		case r.Draining || r.Silent || r.ID == p.cfg.Edge || r.Headroom <= 0:
		case !p.cfg.OneAddress && !r.Addressed:
		case p.now.Before(r.rests):
		case r.Region != p.cfg.Region:
			others = append(others, r)
		case !p.cfg.Elsewhere:
			own = append(own, r)
		}
	}
	byID := func(a, b *receiver) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(own, byID)
	slices.SortFunc(others, byID)
	return own, others
}

// askByHeadroom asks each for its share by weight and returns what they have no
// headroom for.
func (p *Plan) askByHeadroom(receivers []*receiver, movable, unmovable int) (int, int) {
	total := 0
	for _, r := range receivers {
		total += r.Headroom
	}
	askMovable := min(movable, total)
	askUnmovable := min(unmovable, total-askMovable)
	movableLeft, unmovableLeft, weight := askMovable, askUnmovable, total
	for _, r := range receivers {
		// Rounded so that the shares add up, whoever comes last.
		m, u := share(movableLeft, r.Headroom, weight), share(unmovableLeft, r.Headroom, weight)
		u = min(u, r.Headroom-m)
		movableLeft, unmovableLeft, weight = movableLeft-m, unmovableLeft-u, weight-r.Headroom
		p.put(r, m, u)
	}
	return movable - askMovable + movableLeft, unmovable - askUnmovable + unmovableLeft
}

func share(n, weight, total int) int {
	if total <= 0 {
		return 0
	}
	return min((n*weight+total/2)/total, n, weight)
}

// askEvenly asks all for the same: behind a balancer each gets the same.
func (p *Plan) askEvenly(receivers []*receiver, movable, unmovable int) {
	for _, r := range receivers {
		m := min((movable+len(receivers)-1)/len(receivers), r.Headroom)
		u := min((unmovable+len(receivers)-1)/len(receivers), r.Headroom-m)
		p.put(r, m, u)
	}
}

// put puts one question.
func (p *Plan) put(r *receiver, movable, unmovable int) {
	if movable+unmovable == 0 {
		return
	}
	critical := 0
	if n := p.counts.waiting(); n > 0 {
		critical = min((movable*p.counts.Critical+n-1)/n, movable)
	}
	p.number++
	g := &grant{to: r.ID, number: p.number, round: p.round, sent: p.now, tries: 1, request: &gatewayv1.GrantRequest{
		Operation: p.cfg.Operation, Edge: p.cfg.Edge, Incarnation: p.cfg.Incarnation, Number: p.number, Region: p.cfg.Region,
		Movable: uint32(movable), Critical: uint32(critical), Unmovable: uint32(unmovable), WindowMs: millis(p.lastMove.Sub(p.now)), MovableWindowMs: millis(p.movableWindow()),
	}}
	p.grants = append(p.grants, g)
	p.out = append(p.out, Action{Kind: Ask, To: r.ID, Request: g.request})
}

// movableWindow is within which those who can move should be told.
func (p *Plan) movableWindow() time.Duration {
	return min(p.lastMove.Sub(p.now), time.Duration(p.counts.waiting())*time.Second/leastPace)
}

// rest leaves a receiver alone for a while.
func (p *Plan) rest(id string, empty bool) {
	if r := p.receivers[id]; r != nil {
		r.rests = p.now.Add(askAgain)
		if empty {
			r.rests = p.now.Add(restEmpty)
		}
	}
}
