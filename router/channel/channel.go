// Package channel is one channel as a router knows it: where it stands, the newest
// events, what is published on it and waits, runs whose outcome the store has not told,
// and whose turn it is to number it. A Channel is a pure state machine. Events go in as
// calls (Publish, Take, Written, Ask, Read, Give, Accept …), what is to be done comes out
// through Effects. There is no lock, clock, goroutine or I/O in this package, and no line
// of it may bring one in: time and the view of the cluster come with each Step.
//
// A shard of router/table owns each Channel and makes all calls. router/api makes
// Publications and Questions, router/writer fills in Runs, router/backfill ReadResults,
// router/handover carries Handed channels.
//
// The way of a publication:
//
//	Publish -> pending -> Take -> with the writer -> Written -> sent, acked
//	             ^                      |
//	             |   lost the race,     |  outcome unknown: kept, and compared with
//	             +--- store away -------+  what the store has before the next run
//
// A channel whose durability is none takes the same way, without the writer: memory
// numbers its run, sends it and answers at once (durability.go).
//
// Who may number a channel (ownership.go):
//
//	        use, others may have it             handed here, nobody has it, too late
//	none ------------------------------> awaiting ------------------------------+
//	 ^ \                                   |   ^                                |
//	 |  +-- use, nobody can have it --------)---)------------------------------> held
//	 |                                      |   +------ use, we were away -------|
//	 +<---- another's by the view ----------+                                   |
//	                           leaving <----- another's by the view ------------+
//	                              |                  ours again: back to held   |
//	given <----- handed over -----+<--------------------------------------------+
//
// given behaves as none, but knows to whom. leaving serves for its grace, and can be
// handed over after it too.
//
// A run is publications of one channel that are stored, or not, as a whole. To forget is
// to drop what is believed of a channel, so that the next look at it reads the store.
//
// Invariants (I1 and I2 are those of ARCHITECTURE.md):
//
//	tail.first + len(tail.events) == head + 1     or the tail is empty
//	shown >= (epoch, head)                        the highest that store or edges have shown; it outlives forgetting
//	at most one run is with the writer; no run is taken while the channel is moving
//	a publication is finished once; those of one channel are numbered in order of arrival
//	(I2) offsets of one epoch have no holes; (I1) of a stored channel an event is sent
//	and acked only after its run was stored
//
// Limits: what waits on one channel is bounded in bytes (Config.QueueBytes), the tail in
// age, number and bytes, runs of unknown outcome in number, recent keys in number. What
// all channels of a router hold together is bounded by router/table.
//
// Left out on purpose: which channels there are and which of them are let go
// (router/table), the store, the bus, other routers.
package channel

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// Config is what all channels of a router have in common.
type Config struct {
	Router        string        // id of this router, told in envelopes
	QueueBytes    int64         // publications that wait on one channel; past it they are refused
	TailAge       time.Duration // events younger than this stay in a tail
	TailEvents    int           // the newest that stay in a tail at any age
	TailBytes     int64         // past this the oldest events of a tail go whatever they are
	HandoverWait  time.Duration // longest a channel waits to be handed over to this router
	HandoverGrace time.Duration // who lost a channel and has not handed it over serves it on for this long
	KeepEvery     time.Duration // how often the store is told that a channel is in use; 0: never
	RetrySpread   time.Duration // edges that were told UNAVAILABLE come back spread over this
}

// Step is what a call of a Channel sees of the world, and where it says what is to be done.
type Step struct {
	Config *Config
	Out    Effects
	Now    time.Time     // monotonic
	Wall   time.Time     // the clock that events are stamped with
	Look   views.Picture // of ownership
}

// Channel is what a router knows of one channel. All of it is soft: of a stored channel
// the store knows better. It is owned by one goroutine.
type Channel struct {
	name    string
	ns      *namespace.Namespace
	rules   *rules
	foreign bool // another's, and nothing of it is here: it only carries a question to the store

	memory               // what is known of it
	queue                // what waits to be written
	claimed time.Time    // when an edge alone last brought about a new epoch
	running bool         // a run is with the writer
	unknown []UnknownRun // runs whose outcome is unknown; none later was stored yet

	// handing over
	own     ownership
	offered bool      // is listed to be handed over
	asked   request   // for the channel, the last one
	moving  *Handed   // was given as this, and the receiver has not answered: nothing is taken; nil: is not
	since   time.Time // moving: since when
	held    time.Time // until then no run is taken, since it was found busy when it was to be given; zero: it was not
	waiting []waiter  // questions that wait for a hand-over

	lastPublish time.Time
	kept        time.Time // when the store was last told of its use, or had events of it
}

// waiter is a question that waits until the channel is ours or another's.
type waiter interface{ ask(*Channel, *Step) }

// New makes a channel of which nothing is known.
func New(name string, ns *namespace.Namespace) *Channel {
	return &Channel{name: name, ns: ns, rules: &durabilities[ns.Durability]}
}

// NewForeign makes a channel that another router owns, for one question. Nothing is kept
// in it.
func NewForeign(name string, ns *namespace.Namespace) *Channel {
	c := New(name, ns)
	c.foreign = true
	return c
}

// Name is that of the channel.
func (c *Channel) Name() string { return c.name }

// Namespace is the settings of the channel.
func (c *Channel) Namespace() *namespace.Namespace { return c.ns }

// Busy says that something under way refers to the channel, so that it must stay.
func (c *Channel) Busy() bool {
	return c.running || len(c.pending) > 0 || len(c.unknown) > 0 || c.offered || c.moving != nil || len(c.waiting) > 0
}

// Volatile says that what is known of the channel is nowhere else: letting it go ends
// its epoch.
func (c *Channel) Volatile() bool { return c.known && c.rules.numberedBy == byMemory }

// Let lets go of all that is held: the channel leaves the table, and lists may still
// refer to it.
func (c *Channel) Let() {
	c.forget()
	c.keys = nil
}

// Bytes is what tail and keys cost.
func (c *Channel) Bytes() int64 { return c.tail.bytes + c.keys.size() }

// Head is an envelope that repeats where the channel stands; nil: nothing is known, and
// the repeating is another router's business.
func (c *Channel) Head(s *Step) *gatewayv1.Envelope {
	if !c.known {
		return nil
	}
	return &gatewayv1.Envelope{Channel: c.name, Epoch: c.epoch, Head: c.head, Router: s.Config.Router, Base: c.baseAt(c.epoch, c.head)}
}

// LastPublish is when the channel was last published on here.
func (c *Channel) LastPublish() time.Time { return c.lastPublish }

// HasEvents says that the store has events of the channel, as far as memory knows;
// false: it may have.
func (c *Channel) HasEvents(wall time.Time) bool {
	n := len(c.tail.events)
	return n > 0 && (c.ns.HistoryTTL == 0 || int64(c.tail.events[n-1].TimeMs) > wall.Add(-c.ns.HistoryTTL).UnixMilli())
}

// use notes that somebody asks for the channel: without events or a note the store would
// forget its row.
func (c *Channel) use(s *Step) {
	every := s.Config.KeepEvery
	if every == 0 || c.rules.numberedBy == byMemory || !c.kept.IsZero() && s.Wall.Sub(c.kept) < every {
		return
	}
	if c.HasEvents(s.Wall) || s.Out.InUse() {
		c.kept = s.Wall
	}
}

// sight is what this router sees of the channel now.
func (c *Channel) sight(s *Step) sight {
	v := sight{self: s.Look.Self(), revision: s.Look.Revision(), now: s.Look.Trust()}
	v.known = c.known || c.running || len(c.unknown) > 0 // what is in flight may make it known yet
	v.owner, v.since = s.Look.Owner(c.name)
	if r := &c.asked; r.revision > max(v.revision, c.own.revision) {
		v.owner, v.revision, v.since = r.by, r.revision, r.at // who asks knows more than we do
	}
	if c.own.owner(&v) == v.self {
		held := c.own.state == ownHeld || c.own.state == ownLeaving
		v.doubt = s.Look.Doubt(c.name, held, c.own.held, c.own.revision)
	}
	return v
}

// Turn says whose turn it is to serve the channel. If it must wait, the others are asked.
func (c *Channel) Turn(s *Step) Turn { return c.turn(s) }

// turn says whose turn it is to serve the channel. If it must wait, the others are asked.
func (c *Channel) turn(s *Step) Turn {
	if c.foreign {
		return Pass
	}
	if c.own.state == ownHeld && c.own.held == s.Look.Trust() && !s.Look.Leaving() {
		return Serve
	}
	v := c.sight(s)
	before := c.own.state
	turn := c.own.use(&v, s.Now, s.Config.HandoverWait, s.Config.HandoverGrace)
	switch awaits := c.own.state == ownAwaiting; {
	case awaits && before != ownAwaiting:
		s.Out.Seek()
		s.Out.Watch()
	case !awaits && before == ownAwaiting:
		if !s.Now.Before(c.own.until) {
			s.Out.Count(HandoversLate, 1)
		}
		c.release(s)
	}
	return turn
}

// trusted says that the position may be told without a look at the store.
func (c *Channel) trusted(s *Step) bool {
	if s.Now.Before(c.late) {
		return false
	}
	// Nobody else numbers it before it is handed over, or was waited for.
	if c.own.state == ownLeaving && s.Now.Sub(c.own.lost) < min(s.Config.HandoverWait, s.Config.HandoverGrace) {
		return s.Look.TrustedUntilLost(c.name, c.trust, c.vouched)
	}
	return s.Look.Trusted(c.name, c.trust, c.vouched)
}

// sent sends events that follow each other on the bus.
func (c *Channel) sent(s *Step, epoch, base uint64, events []*gatewayv1.BusEvent) {
	c.lastPublish = s.Now
	s.Out.Repeat()
	s.Out.Fan(&gatewayv1.Envelope{
		Channel: c.name, Epoch: epoch, Head: events[len(events)-1].Offset, Events: events, Router: s.Config.Router, Base: base,
	})
}
