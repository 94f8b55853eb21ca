package channel

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// ReadKey names what is read of the store: equal keys may share one flight.
type ReadKey struct {
	Channel  string
	Head     bool // only the head; all below is zero
	Reverse  bool
	After    uint64
	Before   uint64
	Limit    int
	MaxBytes int
}

// ReadQuery asks backfill for a page of a channel, or for its head.
type ReadQuery struct {
	Key       ReadKey
	Namespace *namespace.Namespace
	Mark      Mark
	Seen      Position  // the highest that who asks has seen
	Deadline  time.Time // nobody waits for the answer after it
	Gone      func() bool
	Asker     Asker
}

// Asker is the question behind a ReadQuery. Only its Channel looks into it.
type Asker interface {
	read(*Channel, *Step, *ReadResult)
}

// Mark is where a channel stood before it was read.
type Mark struct {
	Kept    bool     // what is read is kept: the channel is ours, and the store numbers it
	Here    bool     // something of the channel is here
	Claims  bool     // what an edge alone has seen may bring about a new epoch
	Shown   Position // the highest that the store is known to have had
	channel *Channel // it may be let go, and made anew, before the answer is there
	version uint64
	trust   views.Trust
}

// ReadResult is one answer of the store; events are shared and never change.
type ReadResult struct {
	Err     ReadError
	Epoch   uint64
	Head    uint64
	Floor   uint64 // oldest offset stored; Head+1 if none is
	Events  []*gatewayv1.BusEvent
	More    bool
	Claimed bool // what an edge alone had seen began this epoch

	base uint64 // what is older may be of another epoch
}

// ReadAnswer is what the store said to all questions that share a read.
type ReadAnswer struct {
	Query  *ReadQuery // the newest of them
	Result ReadResult
	Askers []Asker
}

// ReadError says why nothing was read.
type ReadError uint8

// The reasons.
const (
	ReadDone   ReadError = iota // nothing was wrong
	ReadBusy                    // the router is busy or leaving
	ReadFailed                  // the store did not answer, or not in time
)

// claimEvery is how often a channel gets a new epoch for what an edge alone says.
const claimEvery = time.Minute

// query asks the store for a question.
func (c *Channel) query(s *Step, key ReadKey, seen Position, deadline time.Time, gone func() bool, a Asker) {
	m := Mark{Shown: c.shown, Here: !c.foreign, channel: c, version: c.version, trust: s.Look.Trust()}
	if owner, _ := s.Look.Owner(c.name); !c.foreign && owner == s.Look.Self() && c.rules.numberedBy == byRow {
		m.Kept = true
		m.Claims = c.claimed.IsZero() || s.Now.Sub(c.claimed) >= claimEvery
	}
	s.Out.Read(&ReadQuery{Key: key, Namespace: c.ns, Mark: m, Seen: seen, Deadline: deadline, Gone: gone, Asker: a})
}

// Read takes what the store said, and answers those who asked for it.
func (c *Channel) Read(s *Step, key ReadKey, m Mark, res *ReadResult, askers []Asker) {
	if res.Err == ReadDone {
		res.base = res.Head
		c.keep(s, key, m, res)
	}
	for _, a := range askers {
		a.read(c, s, res)
	}
}

// keep takes what was read, if the channel is ours. What is here of another's goes if it
// is of an epoch that is over.
func (c *Channel) keep(s *Step, key ReadKey, m Mark, res *ReadResult) {
	if res.Claimed {
		c.claimed = s.Now
	}
	if !m.Kept || m.channel != c {
		if c.rules.numberedBy == byRow && c.known && c.epoch < res.Epoch {
			c.forget()
		}
		return
	}
	c.load(Position{res.Epoch, res.Head}, m.version, m.trust)
	if !c.known || c.epoch != res.Epoch {
		return
	}
	res.base = c.baseAt(res.Epoch, res.Head)
	c.floor = res.Floor
	if len(res.Events) > 0 && !key.Reverse && !res.More {
		c.refill(res.Events)
	}
}
