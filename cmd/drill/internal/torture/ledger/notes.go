// Package ledger holds what a run of a cluster was noted to do against what Spillway
// promises. It is pure: notes go in, breaches come out.
//
// The package torture calls it, after a run: it notes what publishers were answered,
// what reads of history returned and what subscribers were handed, each with the times
// of one clock, and Check says what cannot be. Nothing here does I/O or starts a
// goroutine (but for porcupine's own while Check runs).
//
// What is held against the notes of each channel (rules in parentheses are the names
// that a Breach bears):
//
//	(agreement)  who saw a position saw the same event there
//	(nowhere)    every event was published, and not before it was seen
//	(twice)      nothing that was published once has two places
//	(key)        one key is one event
//	(ack)        an acked event is where its ack says; behind: as long as its epoch stays
//	(refused)    what was refused is nowhere
//	(flow)       events of a channel stand in the order of the call or stream that brought them
//	(epoch)      a durable channel has one epoch
//	(hole)       history has no holes, begins at 1 or where retention cut, ends at its head
//	(order)      a subscriber hears positions one after the other, each once, or is told
//	(gap)        it is told of a loss only where history has lost something
//	(behind)     once all rests, it has everything up to the head, or was told
//	(linear)     publishes and reads of history have an order that explains them (I1)
//
// Values name publishes: no two calls publish the same data, but repeats of one call.
//
// Left out on purpose: how long anything took, but for the order of calls and answers.
package ledger

import (
	"fmt"
	"time"
)

// Position is an offset within an epoch of the channel that is spoken of.
type Position struct {
	Epoch  string
	Offset uint64
}

func (p Position) String() string { return fmt.Sprintf("%s/%d", p.Epoch, p.Offset) }

// Outcome is what a publisher was told.
type Outcome uint8

// The outcomes.
const (
	Unknown Outcome = iota // it may be stored, or be stored later
	Acked
	Refused // nothing was stored, and never will be
)

func (o Outcome) String() string {
	switch o {
	case Acked:
		return "acked"
	case Refused:
		return "refused"
	}
	return "outcome unknown"
}

// Publish is one event that somebody published, with all repeats of the call.
type Publish struct {
	By, Via      string
	Channel      string
	Key          string // "": none
	Value        string // of this event only
	Call, Return time.Duration
	Outcome      Outcome
	At           Position // if Acked
	Repeat       bool     // the ack says that the key was known
	Why          string   // if not Acked
	// Flow is that of the call or stream that it was acked in at the first try, Turn its
	// place there; "": its order means nothing.
	Flow string
	Turn int
}

func (p *Publish) String() string {
	text := fmt.Sprintf("%s publishes %s", p.By, p.Value)
	if p.Key != "" {
		text += " key " + p.Key
	}
	text += " by " + p.Via + ": " + p.Outcome.String()
	switch {
	case p.Outcome == Acked && p.Repeat:
		return text + " at " + p.At.String() + ", a repeat"
	case p.Outcome == Acked:
		return text + " at " + p.At.String()
	}
	return text + " (" + p.Why + ")"
}

// Event is one event of a page.
type Event struct {
	Offset uint64
	Value  string
}

// Read is one page of history that somebody was given.
type Read struct {
	By, Via      string
	Channel      string
	After        uint64 // forward: events behind it were wanted
	Reverse      bool   // the newest were wanted, newest first
	Call, Return time.Duration
	Epoch        string
	Head, First  uint64
	Events       []Event
	More         bool
}

func (r *Read) String() string {
	text := fmt.Sprintf("%s reads by %s: epoch %s head %d first %d", r.By, r.Via, r.Epoch, r.Head, r.First)
	if n := len(r.Events); n > 0 {
		text += fmt.Sprintf(", %d events %d to %d", n, r.Events[0].Offset, r.Events[n-1].Offset)
	}
	return text
}

// Kind of a Step.
type Kind uint8

// The kinds.
const (
	None     Kind = iota
	Joined        // the verdict: events after At follow
	Pending       // no verdict yet
	Received      // the event At was handed over
	Lost          // events after From up to At are lost for this subscriber
	Away          // the connection ended; the subscription goes on with the next
)

func (k Kind) String() string {
	return [...]string{"none", "joined", "pending", "received", "lost", "away"}[k]
}

// Step is one thing that a subscriber heard.
type Step struct {
	Time  time.Duration
	Kind  Kind
	At    Position
	From  Position // of Lost
	Value string   // of Received
	Text  string
}

func (s *Step) String() string {
	switch s.Kind {
	case Received:
		return fmt.Sprintf("received %v %s", s.At, s.Value)
	case Lost:
		return fmt.Sprintf("is told that what is after %v up to %v is lost (%s)", s.From, s.At, s.Text)
	case Joined:
		return fmt.Sprintf("joined at %v %s", s.At, s.Text)
	}
	return s.Kind.String() + " " + s.Text
}

// Stream is one subscription of one subscriber, across its connections.
type Stream struct {
	By      string
	Channel string
	Live    bool // it was there to the end, and had time to catch up after the last fault
	Steps   []Step
}

// Trim is retention that went over a channel; what is before First is gone.
type Trim struct {
	Channel      string
	Call, Return time.Duration
	First        uint64
}

func (t *Trim) String() string { return fmt.Sprintf("retention leaves what is from %d on", t.First) }

// Notes are all of a run.
type Notes struct {
	Publishes []Publish
	Reads     []Read
	Streams   []Stream
	Trims     []Trim
	Finals    []Read // one for each channel, of all that it has, once everything rests
}

// Rules of a channel.
type Rules struct {
	// Durable: what is acked survives everything but retention. Else epochs may come and
	// go, a key is as mortal as its epoch, and losses are allowed if they are told.
	Durable bool
	// Linear: reads of history see every ack before them. Not for channels with a router
	// that the cluster's membership does not know.
	Linear bool
}
