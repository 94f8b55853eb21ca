package channel

import (
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// MaxHops is how many routers may pass a publication on before it is served, or refused,
// where it is.
const MaxHops = 4

// MaxUnknown bounds the runs of unknown outcome of a channel; past it those without a key
// are told so.
const MaxUnknown = 4

// lateFor is how long a run that was given up may still be committed: the server may
// finish it after its client has gone (a commit that waits for the disk), and a head
// that was read before that is not the truth for ever. A minute, as after a change of
// owner.
const lateFor = time.Minute

// Run is what the writer gets of one channel, and what it says became of it. It belongs
// to the writer from Take to Written.
type Run struct {
	// what the channel knew when the run was taken
	Channel  string
	Believed Position
	Load     bool         // the row must be read: the position is not known, or runs are unknown
	Shown    Position     // the highest that the store is known to have had
	Unknown  []UnknownRun // to be compared with what the store has, before anything else
	Pubs     []*Publication
	version  uint64

	// what the writer found
	Row     *Row         // as it was read; nil: it was not
	Found   []UnknownRun // of Unknown, those that the store has
	Over    []UnknownRun // of Unknown, those of which the outcome is known or never will be
	Parts   []Part       // what was stored of Pubs, in order
	Lost    bool         // the row was not as believed: nothing is known any more
	Attempt *UnknownRun  // what was tried last, and nobody knows whether it was stored
	Answers []Answer     // what publishers are told, after all of Parts was sent
	Back    []*Publication
}

// Row is a channel's row in the store, as it was read.
type Row struct {
	Position
	Trust views.Trust // of the moment before the read
}

// Part is events that were stored together.
type Part struct {
	Epoch  uint64
	Head   uint64 // before the events
	Events []*gatewayv1.BusEvent
	Trust  views.Trust // of the moment before they were stored
}

// Answer is the result of one publication.
type Answer struct {
	Pub    *Publication
	Result Result
}

// UnknownRun is a run whose outcome is unknown: the store failed or did not answer
// in time, and may commit it even later. While its events may be in the store
// they are numbered again only as an attempt that the fence lets win once:
//
//	row.head == Run.Head   not stored yet: another run from the same head may be
//	                       tried; of the two at most one is stored
//	row.head >  Run.Head   over: the events at its offsets are ours, or never will be
type UnknownRun struct {
	Run  history.Run
	Pubs []*Publication
}

// Same says that two are the same attempt.
func (u *UnknownRun) Same(v *UnknownRun) bool { return &u.Run.Events[0] == &v.Run.Events[0] }

// Publish takes a publication, or finishes it.
func (c *Channel) Publish(s *Step, p *Publication) {
	switch {
	case c.pendingBytes+p.Size() > s.Config.QueueBytes:
		Refuse(s.Out, p)
	case c.turnsAway(s):
		s.Out.Count(PublicationsTurned, 1)
		s.Out.Finish(p, NotOwner)
	default:
		c.pending = append(c.pending, p)
		c.pendingBytes += p.Size()
		c.ready(s)
	}
}

// Refuse finishes a publication that finds no room. What it carries is let go: the call
// that brought it may wait for others, and is not counted.
func Refuse(out Effects, p *Publication) {
	p.Event = history.Event{}
	out.Finish(p, Overflow)
}

// ready lists the channel if a run may be taken.
func (c *Channel) ready(s *Step) {
	if len(c.pending) > 0 && !c.running && c.moving == nil && !s.Now.Before(c.held) {
		s.Out.Ready()
	}
}

// Take makes a run of the oldest publications whose callers still wait. nil: there is
// nothing for the writer, since it is not our turn, or memory has numbered it.
func (c *Channel) Take(s *Step, events int, bytes int64) *Run {
	if len(c.pending) == 0 || c.running || c.moving != nil || s.Now.Before(c.held) {
		return nil
	}
	turn := c.turn(s)
	if turn == Wait {
		return nil
	}
	pubs := c.collect(s, events, bytes)
	if turn == Pass {
		pubs = c.pass(s, pubs)
	}
	if len(pubs) == 0 {
		if len(c.pending) == 0 {
			c.unknown = nil // nobody waits for what became of them
		} else {
			c.ready(s)
		}
		return nil
	}
	if c.rules.sent == onceNumbered {
		if turn == Serve {
			c.number(s, pubs)
		} else {
			finishAll(s, pubs, NotOwner)
		}
		c.ready(s)
		return nil
	}
	c.running = true
	return &Run{
		Channel: c.name, Believed: Position{c.epoch, c.head}, Load: !c.known || len(c.unknown) > 0, Shown: c.shown,
		Unknown: append([]UnknownRun(nil), c.unknown...), Pubs: pubs, version: c.version,
	}
}

// pass sends on what the owner of the channel may number; it returns what must be served
// here: what its owner cannot be reached for, and what has been passed on too often. If
// one may be in the store already, only this router can find that out, and what stands
// behind it stays with it.
func (c *Channel) pass(s *Step, pubs []*Publication) (here []*Publication) {
	v := c.sight(s)
	owner := c.own.owner(&v)
	if owner == "" || owner == v.self {
		return pubs
	}
	if slices.ContainsFunc(pubs, func(p *Publication) bool { return p.Uncertain }) {
		return pubs
	}
	here = pubs[:0]
	var passed []*Publication
	for _, p := range pubs {
		if p.Here || p.Hops >= MaxHops {
			here = append(here, p)
		} else {
			passed = append(passed, p)
		}
	}
	if len(passed) > 0 {
		s.Out.Count(PublicationsPassed, len(passed))
		s.Out.Pass(owner, passed)
	}
	return here
}

// number numbers, sends and answers publications of a channel without a store.
func (c *Channel) number(s *Step, pubs []*Publication) {
	c.begin(s, 0)
	epoch, head := c.epoch, c.head
	var slab eventSlab
	events := make([]*gatewayv1.BusEvent, 0, len(pubs))
	answers := make([]Answer, len(pubs))
	for i, p := range pubs {
		next := head + uint64(len(events)) + 1
		offset, repeat := c.keyed(p, next)
		answers[i] = Answer{p, Result{Epoch: epoch, Offset: offset, Repeat: repeat, Durability: namespace.None}}
		if repeat {
			continue
		}
		p.Event.Offset, p.Event.TimeMS = offset, s.Wall.UnixMilli()
		e := slab.next(len(pubs) - i)
		fillEvent(e, &p.Event)
		events = append(events, e)
	}
	if len(events) > 0 {
		base := c.baseAt(epoch, head)
		c.grow(s, events)
		c.sent(s, epoch, base, events)
	}
	for _, a := range answers {
		s.Out.Finish(a.Pub, a.Result)
	}
}

// begin readies a channel without a store, which is ours, to be numbered or told. seen is
// an epoch that an edge has seen: one above ours shows an owner that we never saw.
func (c *Channel) begin(s *Step, seen uint64) {
	if !c.known || c.unseen(s, seen) {
		c.move(s.Out.NewEpoch(max(seen, c.epoch, c.own.newest.Epoch)), 0)
		c.floor = 1
		c.keys = nil
	}
	c.trust = s.Look.Trust()
}

// unseenEvery is how often what an edge says makes a channel of memory begin an epoch.
const unseenEvery = 5 * time.Second

// unseen says that an epoch seen by an edge is above ours. Not at once again, so that an
// edge that errs cannot make us begin epoch after epoch.
func (c *Channel) unseen(s *Step, seen uint64) bool {
	if seen <= c.epoch {
		return false
	}
	if !c.claimed.IsZero() && s.Now.Sub(c.claimed) < unseenEvery {
		s.Out.Count(ClaimsRefused, 1)
		return false
	}
	c.claimed = s.Now
	return true
}

// Written takes a run back from the writer: what it found of the row, what it stored, what
// comes again.
func (c *Channel) Written(s *Step, r *Run) {
	c.running = false
	if r.Row != nil {
		c.load(r.Row.Position, r.version, r.Row.Trust)
	}
	c.compared(s, r)
	for i := range r.Parts {
		c.stored(s, &r.Parts[i])
	}
	switch {
	case r.Attempt != nil:
		s.Out.Count(OutcomesUnknown, 1)
		c.forget()
		c.late = s.Now.Add(lateFor)
		if len(c.unknown) < MaxUnknown {
			c.unknown = append(c.unknown, *r.Attempt)
		}
	case r.Lost:
		s.Out.Count(RacesLost, 1)
		c.forget()
	}
	for _, a := range r.Answers {
		s.Out.Finish(a.Pub, a.Result)
	}
	c.requeue(r.Back)
	if len(c.pending) == 0 {
		c.unknown = nil // nobody waits for what became of them
	}
	if c.offered && !c.held.IsZero() { // it was found busy when it was to be handed over
		if to := c.wanted(s); to != "" {
			s.Out.Offer(to, true)
			return
		}
		c.offered, c.held = false, time.Time{}
	}
	c.ready(s)
}

// compared lets go of runs whose outcome is known now, and sends what was found stored.
func (c *Channel) compared(s *Step, r *Run) {
	kept := c.unknown[:0]
	for i := range c.unknown {
		over := false
		for j := range r.Over {
			over = over || c.unknown[i].Same(&r.Over[j])
		}
		if !over {
			kept = append(kept, c.unknown[i])
		}
	}
	clear(c.unknown[len(kept):])
	c.unknown = kept
	for i := range r.Found {
		run := &r.Found[i].Run
		c.sent(s, run.Epoch, c.baseAt(run.Epoch, run.Head), BusEvents(run.Events))
	}
}

// stored makes committed events visible: tail and head, then the bus.
func (c *Channel) stored(s *Step, p *Part) {
	last := p.Events[len(p.Events)-1].Offset
	if c.known && c.epoch == p.Epoch && c.head == p.Head {
		c.grow(s, p.Events)
	} else {
		// A read saw the run before this did, or the channel was forgotten.
		if !c.known || c.epoch < p.Epoch || c.epoch == p.Epoch && c.head < last {
			c.move(p.Epoch, last)
		}
		c.refill(p.Events)
	}
	c.trust = p.Trust
	c.unknown, c.late = nil, time.Time{} // the row has moved past their heads
	c.sent(s, p.Epoch, c.baseAt(p.Epoch, p.Head), p.Events)
}

// finishAll answers publications, and those that wait behind them.
func finishAll(s *Step, pubs []*Publication, res Result) {
	for _, p := range Expand(pubs) {
		s.Out.Finish(p, res)
	}
}

// Expand puts repeats back behind the publication that they waited for.
func Expand(pubs []*Publication) []*Publication {
	all := make([]*Publication, 0, len(pubs))
	for _, p := range pubs {
		all = append(all, p)
		all = append(all, p.Repeats...)
		p.Repeats = nil
	}
	return all
}
