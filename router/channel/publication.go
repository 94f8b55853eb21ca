package channel

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

// publicationBytes is what a waiting publish costs beside its strings.
const publicationBytes = 320

// Stage is how far a publication has come. A caller that gives up may take back
// what nobody has taken yet, and only that.
//
//	queued -> taken -> done
//	  |  ^------|          (a run that was not stored is queued again)
//	  +-> abandoned
type Stage = uint32

// The stages.
const (
	Queued Stage = iota
	Taken
	Done
	Abandoned
)

// Publication is one event on its way to the readers of its channel. It belongs to
// whoever holds it: the api that made it, then the channel that queued it, then the
// writer that has it in a run. Only its stage is shared.
type Publication struct {
	// immutable once it is published
	Channel   string
	Namespace *namespace.Namespace
	Call      *Call
	OpenOnly  bool   // from a client without a grant for the channel
	ByClient  bool   // from a client, whatever its grants
	Forwarded bool   // another router passed it on
	Hops      uint32 // routers that have passed it on
	Here      bool   // its owner cannot be reached: it is served here

	Event     history.Event
	Since     time.Time // when it was queued first
	Races     int       // how often its run lost the race for the channel
	Uncertain bool      // a run with it has an unknown outcome

	// Repeats have the same key and stand behind it in one run: they hear what it hears.
	Repeats []*Publication

	size   int64
	stage  atomic.Uint32
	result Result // written before the stage is Done
}

// Result is what became of a publication. Code is OK if the event was taken.
type Result struct {
	Code       codes.Code
	Message    string
	Reason     string // of a mistake, for programs; mostly empty
	RetryAfter time.Duration
	Epoch      uint64
	Offset     uint64
	Repeat     bool
	Durability namespace.Durability // what an event that was taken has survived
}

// MovingRetry is when to come back for a channel that changes its owner.
const MovingRetry = 200 * time.Millisecond

// What publishers hear of events that were not taken, or may not have been.
var (
	UnknownOutcome = Result{
		Code: codes.Unavailable, RetryAfter: time.Second,
		Message: "outcome unknown: the store did not answer in time; repeat with the same key",
	}
	NotStored = Result{Code: codes.Unavailable, RetryAfter: time.Second, Message: "not stored: the store did not answer in time"}
	Overflow  = Result{Code: codes.ResourceExhausted, RetryAfter: 250 * time.Millisecond, Message: "too many publishes are waiting; nothing was stored"}
	NotOwner  = Result{Code: codes.Unavailable, RetryAfter: MovingRetry, Message: "not stored: the channel is moving to another router"}
)

// Key is the idempotency key with whose it is.
func (p *Publication) Key() history.Key { return history.Key{Scope: p.Event.Scope, Key: p.Event.Key} }

// Measure notes what the publication costs while it waits.
func (p *Publication) Measure() {
	e := &p.Event
	p.size = publicationBytes + int64(len(p.Channel)+len(e.Data)+len(e.Meta)+len(e.Key)+len(e.From)+len(e.Scope))
}

// Size is what Measure found, in bytes.
func (p *Publication) Size() int64 { return p.size }

// Stage is how far it has come.
func (p *Publication) Stage() Stage { return p.stage.Load() }

// Take moves a queued publication on; false: its caller has given up, or it is done.
func (p *Publication) Take() bool { return p.stage.CompareAndSwap(Queued, Taken) }

// Requeue lets a taken publication be given up again.
func (p *Publication) Requeue() { p.stage.Store(Queued) }

// Finish ends the publication. Whoever took it, or nobody yet, may call it, once; a
// caller that gave up meanwhile has been counted.
func (p *Publication) Finish(res Result) {
	p.result = res
	if p.stage.Swap(Done) != Abandoned {
		p.Call.ended()
	}
}

// GiveUp is the result of a publication whose caller waits no more.
func (p *Publication) GiveUp() Result {
	if p.stage.CompareAndSwap(Queued, Abandoned) {
		p.Call.ended() // it is never numbered: the flow need not wait for it
		if p.Uncertain {
			return UnknownOutcome
		}
		return NotStored
	}
	if p.stage.Load() == Done {
		return p.result
	}
	return UnknownOutcome
}

// Call waits for publications that came together.
type Call struct {
	pending  atomic.Int64
	finished chan struct{} // closed when pending is 0, if there is no notify
	notify   chan struct{} // capacity 1: signalled when pending is 0; many calls share it
}

// NewCall waits for n publications.
func NewCall(n int) *Call {
	c := &Call{finished: make(chan struct{})}
	c.pending.Store(int64(n))
	if n == 0 {
		close(c.finished)
	}
	return c
}

// Notify makes c wait for n publications and signal a channel of capacity 1, which
// many calls may share, when the last has ended.
func (c *Call) Notify(n int, notify chan struct{}) {
	c.notify = notify
	c.pending.Store(int64(n))
}

// Pending is how many have not ended.
func (c *Call) Pending() int64 { return c.pending.Load() }

// ended counts a publication that needs no waiting any more.
func (c *Call) ended() {
	if c.pending.Add(-1) > 0 {
		return
	}
	if c.notify == nil {
		close(c.finished)
		return
	}
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// Wait returns the results in order: all of them, or what is known when ctx ends.
func (c *Call) Wait(ctx context.Context, pubs []*Publication) []Result {
	select {
	case <-c.finished:
	case <-ctx.Done():
	}
	return c.Results(pubs)
}

// Results are all of them if all are there, else what is known: who asks waits no more.
func (c *Call) Results(pubs []*Publication) []Result {
	results := make([]Result, len(pubs))
	all := c.pending.Load() == 0
	for i, p := range pubs {
		if all {
			results[i] = p.result
		} else {
			results[i] = p.GiveUp()
		}
	}
	return results
}
