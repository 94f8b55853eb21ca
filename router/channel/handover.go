package channel

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// lively is how young the newest event of a channel is whose head the new owner repeats.
const lively = 5 * time.Second

// Handed is all that is known of a channel, as it is handed over. Its events are shared
// with answers that are under way and never change.
type Handed struct {
	Revision uint64                   // of the view by which the receiver owns the channel
	Meta     *gatewayv1.HandedChannel // without events and keys
	Events   []*gatewayv1.BusEvent
	Keys     []*gatewayv1.HandedKey
}

// request is that of another router for a channel, which it owns by its view.
type request struct {
	by       string
	revision uint64
	at       time.Time // when it came
}

// wanted is whom the channel is to be handed to; "": nobody. What waited for a hand-over
// goes on if the channel is another's now.
func (c *Channel) wanted(s *Step) string {
	v := c.sight(s)
	before := c.own.state
	due := c.own.due(&v)
	if before == ownAwaiting && c.own.state != ownAwaiting {
		c.release(s)
	}
	return due
}

// Viewed looks at a new view: the channel may be another's now.
func (c *Channel) Viewed(s *Step) {
	if c.own.state == ownNone || c.own.state == ownGiven {
		return
	}
	if to := c.wanted(s); to != "" {
		c.offer(s, to, false)
	}
}

func (c *Channel) offer(s *Step, to string, first bool) {
	if c.offered && !first {
		return
	}
	c.offered = true
	s.Out.Offer(to, first)
}

// Give lets the channel go to a router for which it was offered. nil: it need not, or
// there is nothing to hand over, or it must wait until its run has ended.
func (c *Channel) Give(s *Step, to string) *Handed {
	due := c.wanted(s)
	switch {
	case due == "":
		c.stay(s)
		return nil
	case due != to:
		c.offered = false
		c.offer(s, due, false)
		return nil
	case c.running:
		// Its run may be the last here; what follows waits, but not for long.
		c.offered = true
		if c.held.IsZero() {
			c.held = s.Now.Add(s.Config.HandoverWait / 2)
		}
		s.Out.Watch()
		return nil
	case len(c.unknown) > 0:
		// The store does not answer. It stays here, and its next owner loads it.
		s.Out.Count(HandoversBusy, 1)
		c.stay(s)
		return nil
	}
	v := c.sight(s)
	if !c.known {
		c.own.state, c.own.to, c.own.revision = ownGiven, to, v.revision
		c.stay(s)
		return nil
	}
	h := c.pack(s, v.revision)
	h.Meta.Moves = c.own.give(to, v.revision, standing{Position: Position{c.epoch, c.head}, stored: h.Meta.Stored}, s.Now).moves
	c.offered, c.held = false, time.Time{}
	c.moving, c.since = h, s.Now // until the receiver has answered
	s.Out.Watch()
	c.forget()
	c.keys = nil
	return h
}

// Withdrawn ends an offer that cannot be carried out.
func (c *Channel) Withdrawn(s *Step) { c.stay(s) }

// stay ends an offer: the channel is served here, or passed on without a hand-over.
func (c *Channel) stay(s *Step) {
	c.offered, c.held = false, time.Time{}
	c.ready(s)
}

func (c *Channel) pack(s *Step, revision uint64) *Handed {
	stored := c.rules.numberedBy == byRow
	h := &Handed{Revision: revision, Events: c.tail.events, Meta: &gatewayv1.HandedChannel{
		Channel: c.name, Epoch: c.epoch, Head: c.head, Floor: c.floor, Stored: stored, Base: c.baseAt(c.epoch, c.head),
		Settled: !stored || s.Look.TrustedUntilLost(c.name, c.trust, c.vouched) && !s.Now.Before(c.late),
	}}
	if c.keys != nil {
		for _, k := range c.keys.order {
			h.Keys = append(h.Keys, &gatewayv1.HandedKey{Scope: k.Scope, Key: k.Key, Offset: c.keys.offsets[k]})
		}
	}
	return h
}

// Given ends the moving of a channel: the receiver has it, or nobody knows whether it has.
// It may have come back and be given once more: then the later one counts.
func (c *Channel) Given(s *Step, h *Handed) {
	if c.moving != h {
		return
	}
	c.moving = nil
	c.seek(s)
	c.release(s)
}

// seek asks the others for a channel that came to be waited for while it was moving: what
// they said until now may be of before it reached them.
func (c *Channel) seek(s *Step) {
	if c.own.state == ownAwaiting {
		s.Out.Seek()
	}
}

// Returned puts a channel back that the receiver certainly did not take.
func (c *Channel) Returned(s *Step, h *Handed) {
	if c.moving == h {
		c.moving = nil
	}
	h.Meta.Moves++
	h.Revision = 0 // what the views say counts from now on
	c.take(s, h)
	v := c.sight(s)
	if c.own.due(&v) != "" {
		c.own.lost = s.Now // it is served here until another can take it
	}
	c.seek(s)
	c.release(s)
}

// Accept takes a channel that another router hands over; false: it came late, or is known
// already.
func (c *Channel) Accept(s *Step, h *Handed) bool {
	awaited := c.own.state == ownAwaiting
	took := c.take(s, h)
	switch {
	case !took:
		s.Out.Count(HandoversRefused, 1)
	case awaited:
		s.Out.Count(HandoversArrived, 1)
		s.Out.Count(HandoversTaken, 1)
	default:
		s.Out.Count(HandoversTaken, 1)
	}
	if to := c.wanted(s); to != "" {
		c.offer(s, to, false) // a view newer than the giver's
	}
	c.release(s)
	return took
}

func (c *Channel) take(s *Step, h *Handed) bool {
	m := h.Meta
	if m.Stored != (c.rules.numberedBy == byRow) {
		return false // the routers' configurations differ
	}
	v := c.sight(s)
	at := Position{m.Epoch, m.Head}
	have := c.known && !at.Above(Position{c.epoch, c.head}) ||
		m.Stored && c.shown.Above(at) // the store has had more
	if !c.own.accept(&v, h.Revision, standing{Position: at, moves: m.Moves, stored: m.Stored}, have) {
		if c.known && c.epoch == m.Epoch && c.head == m.Head {
			c.refill(h.Events)
		}
		return false
	}
	loaded := c.known // an older position: what is newer than it was numbered elsewhere
	c.forget()
	c.move(m.Epoch, m.Head)
	c.base = Position{m.Epoch, m.Base}
	if n := len(h.Events); n > 0 && h.Events[n-1].Offset == m.Head {
		c.refill(h.Events)
	}
	if m.Floor > 0 {
		c.floor = m.Floor
	}
	if !m.Stored {
		c.keys = keysOf(h.Keys)
	}
	if m.Settled && !loaded {
		c.vouch(s, &v, h.Revision)
	}
	if n := len(h.Events); n > 0 && s.Wall.UnixMilli()-int64(h.Events[n-1].TimeMs) < lively.Milliseconds() {
		c.lastPublish = s.Now
		s.Out.Repeat() // the giver does that no more
	}
	return true
}

// vouch notes that the giver knew the position to be the truth.
func (c *Channel) vouch(s *Step, v *sight, revision uint64) {
	c.trust, c.vouched = s.Look.Trust(), revision
	if v.owner == v.self {
		c.vouched = max(c.vouched, v.revision)
	}
}

func keysOf(handed []*gatewayv1.HandedKey) *recentKeys {
	if len(handed) == 0 {
		return nil
	}
	keys := newRecentKeys()
	for _, k := range handed {
		keys.put(history.Key{Scope: k.Scope, Key: k.Key}, k.Offset)
	}
	return keys
}

// Asked answers a router that owns the channel by its view of a revision and does not
// have it. What it can have is offered to it before all others.
func (c *Channel) Asked(s *Step, by string, revision uint64) gatewayv1.Taking {
	v := c.sight(s)
	if owner := c.own.owner(&v); owner != by && owner != "" && revision <= max(v.revision, c.own.revision) {
		return gatewayv1.Taking_TAKING_LATER // it sees less than we do: it will see
	}
	switch {
	case c.moving != nil && c.own.state != ownHeld && c.own.state != ownLeaving:
		return gatewayv1.Taking_TAKING_LATER
	case v.known && c.own.holds():
		if revision > c.asked.revision {
			c.asked = request{by, revision, s.Now}
		}
		c.wanted(s) // it is the asker's from now on
		c.offer(s, by, true)
		return gatewayv1.Taking_TAKING_COMING
	case c.own.state == ownAwaiting:
		return gatewayv1.Taking_TAKING_LATER
	case c.own.state == ownGiven && c.own.to != by && s.Now.Sub(c.own.gone) < 2*s.Config.HandoverWait:
		return gatewayv1.Taking_TAKING_LATER // it may be there, or on its way, by now
	}
	return gatewayv1.Taking_TAKING_NOTHING
}

// Nobody ends the waiting for a hand-over: no other router has the channel. While it is
// moving, nobody can say so.
func (c *Channel) Nobody(s *Step) {
	if !c.Awaiting() {
		return
	}
	s.Out.Count(HandoversNobody, 1)
	v := c.sight(s)
	c.own.nobody(&v)
	c.wanted(s) // it may be another's by now
	c.release(s)
}

// HandingOver says that the channel waits to be handed over, or is on its way.
func (c *Channel) HandingOver() bool { return c.offered || c.moving != nil }

// Awaiting says that the channel waits to be handed over to this router, and that the
// others can be asked for it: this router's own hand-over of it has ended.
func (c *Channel) Awaiting() bool { return c.own.state == ownAwaiting && c.moving == nil }

// release lets go on what waited for a hand-over, here or away.
func (c *Channel) release(s *Step) {
	waiting := c.waiting
	c.waiting = nil
	for _, w := range waiting {
		w.ask(c, s)
	}
	c.ready(s)
}

// Tick ends what has lasted too long; false: nothing is left to be watched.
func (c *Channel) Tick(s *Step) bool {
	if c.own.state == ownAwaiting && !s.Now.Before(c.own.until) {
		c.turn(s) // it begins anew, or is loaded
	}
	if c.turnsAway(s) {
		c.turnAway(s)
	}
	switch {
	case c.held.IsZero() || s.Now.Before(c.held):
	case !c.running:
		c.stay(s) // its giver is busy with something else
		if to := c.wanted(s); to != "" {
			c.offer(s, to, false)
		}
	case !s.Now.Before(c.held.Add(s.Config.HandoverGrace - s.Config.HandoverWait/2)):
		// The store does not answer. It stays here, and its next owner loads it.
		s.Out.Count(HandoversBusy, 1)
		c.stay(s)
	}
	return c.own.state == ownAwaiting || c.moving != nil || !c.held.IsZero()
}

// turnsAway says that the receiver has not answered for so long that publishers are told
// to come again.
func (c *Channel) turnsAway(s *Step) bool {
	return c.moving != nil && s.Now.Sub(c.since) >= s.Config.HandoverWait/2
}

// turnAway tells publishers to come again; nothing of theirs was begun here.
func (c *Channel) turnAway(s *Step) {
	for _, p := range c.collect(s, len(c.pending), c.pendingBytes+1) {
		s.Out.Count(PublicationsTurned, 1)
		if p.Uncertain {
			s.Out.Finish(p, UnknownOutcome)
		} else {
			s.Out.Finish(p, NotOwner)
		}
	}
}
