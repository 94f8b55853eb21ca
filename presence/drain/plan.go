package drain

import (
	"fmt"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	mostGrace = 5 * time.Second // from the hint without a grant to the close
	mostRoom  = 2 * time.Second // from the last granted hint to the first close of a straggler
	// firstRoundTime is how long the first round may take before it counts as over.
	firstRoundTime = 1500 * time.Millisecond
)

// Plan is one edge's part in one operation.
type Plan struct {
	// immutable after New
	cfg      Config
	lastMove time.Time     // of a grant that is asked for: the last tenth is the stragglers'
	lastTell time.Time     // of those without a grant
	tail     time.Time     // when the closes of stragglers begin
	grace    time.Duration // of those without a grant

	// the state
	now           time.Time
	counts        Counts
	receivers     map[string]*receiver
	grants        []*grant // by number
	number        uint32
	round         int
	nextAsk       time.Time
	inARow        int  // rounds since the last pause
	short         bool // the last round that is over left clients without room
	missing       int  // those, at the last Tick
	answered      int  // the newest round that is over
	away          bool // the bus was away at the last question
	ended         bool
	granted       int // confirmed so far
	sentTo        map[string]bool
	message       string
	unplaced      int    // let go without a grant so far
	why           string // there was none for the first of them
	unplacedMoves pace
	unplacedPace  pace
	tailPace      pace
	out           []Action
}

type receiver struct {
	Receiver
	rests time.Time // not asked before
}

// New plans from cfg.Start to cfg.End.
func New(cfg Config) *Plan {
	window := max(cfg.End.Sub(cfg.Start), Step)
	p := &Plan{
		cfg:       cfg,
		grace:     min(mostGrace, window/5),
		tail:      cfg.End.Add(-window / 10),
		receivers: make(map[string]*receiver),
		sentTo:    make(map[string]bool),
	}
	p.lastMove = p.tail.Add(-min(mostRoom, window/10))
	p.lastTell = cfg.End.Add(-p.grace)
	if cfg.GrantedOnly && cfg.KeepStragglers {
		p.lastMove = cfg.End
	}
	return p
}

// Tick says who is still here and who else there is, and returns what to do now. The
// driver must do all of it.
func (p *Plan) Tick(now time.Time, counts Counts, receivers []Receiver) []Action {
	p.now, p.counts = now, counts
	p.see(receivers)
	if p.ended {
		return nil
	}
	if !now.Before(p.cfg.End) {
		p.finish()
		if !p.cfg.GrantedOnly {
			p.out = append(p.out, Action{Kind: CloseAll})
			p.letGo(p.missing)
			p.missing, p.message = 0, p.lasting()
		}
		return p.take()
	}
	p.tend()
	p.recall()
	p.ask()
	p.endRound()
	p.move()
	p.close()
	p.straggle()
	return p.take()
}

// Stop ends the plan: what is granted and not used is given back. Those who were told
// still go.
func (p *Plan) Stop(now time.Time) []Action {
	p.now = now
	p.finish()
	return p.take()
}

func (p *Plan) finish() {
	p.ended = true
	for _, g := range p.grants {
		p.giveBack(g)
	}
	p.grants = nil
}

func (p *Plan) take() []Action {
	out := p.out
	p.out = nil
	return out
}

func (p *Plan) see(receivers []Receiver) {
	known := make(map[string]bool, len(receivers))
	for _, r := range receivers {
		known[r.ID] = true
		have := p.receivers[r.ID]
		if have == nil {
			have = &receiver{}
			p.receivers[r.ID] = have
		}
		have.Receiver = r
	}
	for id := range p.receivers {
		if !known[id] {
			delete(p.receivers, id)
		}
	}
}

// endRound notes when a round is over, and says so if there is not room for all. While a
// round is under way nobody is let go without a grant who may yet get one.
func (p *Plan) endRound() {
	movable, unmovable := p.uncovered(p.cfg.End)
	p.missing = movable + unmovable
	slow := p.round == 1 && p.now.Sub(p.cfg.Start) >= firstRoundTime
	if p.round > p.answered && (!p.asking() && p.now.Before(p.nextAsk) || slow) {
		p.answered, p.short = p.round, p.missing > 0
	}
	p.short = p.short && p.missing > 0 || p.missing > 0 && !p.now.Before(p.lastMove)
	p.message = p.words()
}

// words say what its starter should know.
func (p *Plan) words() string {
	all := p.counts.waiting() + p.counts.Unmovable
	then := "they are told and closed evenly over the window"
	if p.cfg.GrantedOnly {
		then = "they stay"
	}
	switch cause := p.cause(); {
	case !p.short:
		return p.lasting()
	case p.away:
		return fmt.Sprintf("%s: no room can be asked for %d of %d clients; %s", cause, p.missing, all, then)
	case len(p.receivers) == 0:
		return fmt.Sprintf("%s; %d clients: %s", cause, p.missing, then)
	default:
		return fmt.Sprintf("%s for %d of %d clients; %s", cause, p.missing, all, then)
	}
}

// cause is why clients get no grant.
func (p *Plan) cause() string {
	switch {
	case p.away:
		return "the bus is away"
	case len(p.receivers) == 0:
		return "no other edge serves"
	}
	return "no room elsewhere"
}

// letGo notes clients that go without a grant.
func (p *Plan) letGo(n int) {
	if n <= 0 {
		return
	}
	if p.unplaced == 0 {
		p.why = p.cause()
	}
	p.unplaced += n
}

// lasting is what is left to say when nobody lacks room: that a round was short for a
// moment is no news once all have room; who went without a grant meanwhile is.
func (p *Plan) lasting() string {
	if p.unplaced == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d clients were told or closed without a grant", p.why, p.unplaced)
}

// move hands out the slots of those who can move.
func (p *Plan) move() {
	left := p.counts.waiting()
	unplaced, _ := p.uncovered(p.cfg.End)
	tell := func(to string, n int, first time.Time, every time.Duration) {
		if n > 0 {
			left -= n
			if to != "" {
				p.sentTo[to] = true
			}
			p.out = append(p.out, Action{Kind: Move, To: to, Count: n, First: first, Every: every, Granted: true})
		}
	}
	if p.cfg.OneAddress {
		for _, pool := range p.pools() {
			if pool.over() {
				p.giveBackPool(pool)
				continue
			}
			n, first, every := pool.slots(p.now, left)
			tell("", n, first, every)
		}
	} else {
		for _, g := range p.grants {
			if g.state != grantHeld || g.movable <= 0 {
				continue
			}
			every := interval(g.rate())
			n, first := g.movePace.slots(p.now, g.start, every, min(left, g.movable))
			g.movable -= n
			tell(g.to, n, first, every)
		}
	}
	if p.cfg.GrantedOnly || !p.short {
		return
	}
	n, first, every := p.unplacedMoves.evenly(p.now, p.lastTell, min(unplaced, left))
	if n > 0 {
		p.letGo(n)
		p.out = append(p.out, Action{Kind: Move, Count: n, First: first, Every: every, Grace: p.grace})
	}
}

// giveBackPool gives back what a pool may not spend any more.
func (p *Plan) giveBackPool(q pool) {
	for _, g := range q {
		if g.movable > 0 {
			p.giveBackMovable(g)
		}
		g.movable = 0
	}
}

func (p *Plan) giveBackMovable(g *grant) {
	keep := &gatewayv1.GrantConfirm{
		Operation: g.keep.Operation, Edge: g.keep.Edge, Number: g.number,
		Movable: g.keep.Movable - uint32(g.movable), Unmovable: g.keep.Unmovable,
		LastSlotMs: millis(g.lapses.Add(-grantLives).Sub(p.now)),
	}
	g.keep = keep
	p.out = append(p.out, Action{Kind: Confirm, To: g.to, Keep: keep})
}

// close hands out the slots of those who cannot move: over the whole window, at no
// more than the granted pace as long as that lasts.
func (p *Plan) close() {
	left := p.counts.Unmovable
	_, unplaced := p.uncovered(p.cfg.End)
	shut := func(n int, first time.Time, every time.Duration) {
		if n > 0 {
			left -= n
			p.out = append(p.out, Action{Kind: Close, Count: n, First: first, Every: every})
		}
	}
	for _, g := range p.grants {
		if n := min(left, g.unmovable); g.state == grantHeld && n > 0 {
			every := min(g.closeEvery, p.cfg.End.Sub(p.now)/time.Duration(max(n-1, 1))) // the end may have come forward
			every = max(every, interval(g.unmovableRate))
			k, first := g.closePace.slots(p.now, g.start, every, n)
			g.unmovable -= k
			shut(k, first, every)
		}
	}
	if !p.cfg.GrantedOnly && p.short {
		n, first, every := p.unplacedPace.evenly(p.now, p.cfg.End, min(unplaced, left))
		p.letGo(n)
		shut(n, first, every)
	}
}

// straggle closes, over the last tenth, who was told and is still here.
func (p *Plan) straggle() {
	if p.cfg.KeepStragglers || p.now.Before(p.tail) {
		return
	}
	if n, first, every := p.tailPace.evenly(p.now, p.cfg.End, p.counts.Hinted); n > 0 {
		p.out = append(p.out, Action{Kind: CloseHinted, Count: n, First: first, Every: every})
	}
}

// Report fills in what the plan knows of its progress.
func (p *Plan) Report(into *gatewayv1.Progress, operationStart time.Time) {
	into.Granted, into.Missing, into.Message = uint32(p.granted), uint32(p.missing), p.message
	end := p.now
	for _, g := range p.grants {
		if g.state != grantHeld {
			continue
		}
		if g.movable > 0 {
			into.GrantedPerSecond += g.rate()
			from := later(later(p.now, g.start), g.movePace.next)
			end = later(end, from.Add(time.Duration(float64(g.movable)/g.rate()*float64(time.Second))))
		}
		if g.unmovable > 0 {
			left := max(p.cfg.End.Sub(p.now), Step).Seconds()
			into.GrantedPerSecond += min(g.unmovableRate, float64(g.unmovable)/left)
		}
	}
	if p.counts.Unmovable > 0 || p.missing > 0 || end.After(p.cfg.End) {
		end = p.cfg.End
	}
	into.PlannedMs = millis(end.Sub(operationStart))
}

// Hurry brings the end forward.
func (p *Plan) Hurry(now, end time.Time) {
	if !end.Before(p.cfg.End) {
		return
	}
	window := max(end.Sub(now), Step)
	p.cfg.End = end
	p.grace = min(mostGrace, window/5)
	p.tail = end.Add(-window / 10)
	p.lastMove = p.tail.Add(-min(mostRoom, window/10))
	p.lastTell = end.Add(-p.grace)
}
