package router

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/router/history"
)

// publicationBytes is what a waiting publish costs beside its strings.
const publicationBytes = 320

// stage is how far a publication has come. A caller that gives up may take back
// what no committer has taken, and only that.
//
//	queued -> taken -> done
//	  |  ^------|          (a run that was not stored is queued again)
//	  +-> abandoned
type stage = uint32

const (
	queued stage = iota
	taken
	done
	abandoned
)

// publication is one event on its way to the store.
type publication struct {
	// immutable once queued
	channel   string
	ns        *Namespace
	size      int64
	since     time.Time
	call      *call
	openOnly  bool // from a client without a grant for the channel
	byClient  bool
	forwarded bool
	hops      uint32 // routers that have passed it on
	here      bool   // its owner cannot be reached: it is served here

	stage atomic.Uint32

	// owned by the committer that took it; by the queue's shard while queued
	event     history.Event
	races     int            // lost
	uncertain bool           // a run with it has an unknown outcome
	repeats   []*publication // with the same key, behind it in one batch

	result result // written before stage is done
}

// result is what became of a publication.
type result struct {
	code       codes.Code
	message    string
	reason     string // of a mistake, for programs; mostly empty
	retryAfter time.Duration
	epoch      uint64
	offset     uint64
	repeat     bool
	durability Durability // what an event that was taken has survived
}

func (p *publication) key() history.Key {
	return history.Key{Scope: p.event.Scope, Key: p.event.Key}
}

func (p *publication) measure() {
	e := &p.event
	p.size = publicationBytes + int64(len(p.channel)+len(e.Data)+len(e.Meta)+len(e.Key)+len(e.From)+len(e.Scope))
}

// call waits for publications that came together.
type call struct {
	pending  atomic.Int64
	finished chan struct{} // closed when pending is 0, if there is no notify
	notify   chan struct{} // capacity 1: signalled when pending is 0; many calls share it
}

func newCall(n int) *call {
	c := &call{finished: make(chan struct{})}
	c.pending.Store(int64(n))
	if n == 0 {
		close(c.finished)
	}
	return c
}

// finish ends a publication. The committer that took it, or nobody yet, may call it;
// who gave up meanwhile has been counted.
func (p *publication) finish(res result) {
	p.result = res
	if p.stage.Swap(done) != abandoned {
		p.call.ended()
	}
}

// ended counts a publication that needs no waiting any more.
func (c *call) ended() {
	if c.pending.Add(-1) > 0 {
		return
	}
	if c.notify != nil {
		signal(c.notify)
		return
	}
	close(c.finished)
}

// wait returns the results in order: all of them, or what is known when ctx ends.
func (c *call) wait(ctx context.Context, pubs []*publication) []result {
	select {
	case <-c.finished:
	case <-ctx.Done():
	}
	return c.results(pubs)
}

// results are all of them if all are there, else what is known: who asks waits no more.
func (c *call) results(pubs []*publication) []result {
	results := make([]result, len(pubs))
	all := c.pending.Load() == 0
	for i, p := range pubs {
		if all {
			results[i] = p.result
		} else {
			results[i] = p.giveUp()
		}
	}
	return results
}

// giveUp is the result of a publication whose caller waits no more.
func (p *publication) giveUp() result {
	if p.stage.CompareAndSwap(queued, abandoned) {
		p.call.ended() // it is never numbered: the flow need not wait for it
		if p.uncertain {
			return unknownOutcome
		}
		return notStored
	}
	if p.stage.Load() == done {
		return p.result
	}
	return unknownOutcome
}

var (
	unknownOutcome = result{
		code: codes.Unavailable, retryAfter: time.Second,
		message: "outcome unknown: the store did not answer in time; repeat with the same key",
	}
	notStored = result{code: codes.Unavailable, retryAfter: time.Second, message: "not stored: the store did not answer in time"}
	overflow  = result{code: codes.ResourceExhausted, retryAfter: 250 * time.Millisecond, message: "too many publishes are waiting; nothing was stored"}
)
