// Package backfill turns questions that memory cannot answer into few calls of the store.
// What comes within a short window, in a pace after the batch before, or while all places
// in the store are taken, goes together: what a storm of returning clients costs the
// store grows with time and full batches, not with the clients (I10).
//
// router/table adds questions and is given the answers; backfill calls the store and
// router/renewal. It looks into no channel: what it needs to know of one comes with the
// question (channel.Mark).
//
// Life: New does no I/O; Run owns one goroutine that forms batches and one for each batch
// in the store, and waits for them. Add and Lag may be called from any goroutine and do
// not block.
//
// Invariants: every result is as young as its question (only flights that have not
// started are joined); of one key one flight is in the store at a time; at most Config.Reads
// batches are; a batch asks for at most Config.Ranges and Config.Bytes; batches begun in t
// seconds <= burst + t / Pace + flights / fill. Every question is answered once.
//
// Limits: Config.Queue questions wait; more are answered as busy, and counted.
//
// Left out on purpose: what becomes of an answer (router/channel).
package backfill

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/renewal"
)

// Config of a Backfill. All fields must be set.
type Config struct {
	Reads    int                   // batches in the store at once
	Window   time.Duration         // how long a batch collects after a rest
	Pace     time.Duration         // between two batches that are not full, once a burst is used up
	Ranges   int                   // most questions of one batch; 1: a call for each
	Bytes    int                   // most bytes that one batch may ask for
	Queue    int                   // questions that wait; past it they are refused
	Deadline time.Duration         // longest that a question waits
	Registry prometheus.Registerer // nil: nothing is registered
}

// Backfill reads for one router.
type Backfill struct {
	// immutable after New
	cfg     Config
	store   history.Store
	renewer *renewal.Renewer
	answer  func(*channel.ReadAnswer) // must not block
	log     *slog.Logger
	metrics *metrics
	wake    chan struct{} // capacity 1
	slots   chan struct{} // capacity Reads: one token a batch in the store

	peak atomic.Int64 // most batches that were in the store at once

	mu     sync.Mutex // guards below
	gather gather
	queue  queue
	took   time.Duration // by a batch of late
	closed bool
}

// New makes a Backfill. answer is called once for each flight, from any goroutine.
func New(cfg Config, store history.Store, renewer *renewal.Renewer, answer func(*channel.ReadAnswer), log *slog.Logger) *Backfill {
	b := &Backfill{
		cfg: cfg, store: store, renewer: renewer, answer: answer, log: log,
		wake: make(chan struct{}, 1), slots: make(chan struct{}, cfg.Reads), gather: newGather(&cfg), queue: newQueue(),
	}
	b.metrics = newMetrics(cfg.Registry, b)
	return b
}

// Add asks; past Config.Queue the answer is "busy" at once.
func (b *Backfill) Add(q *channel.ReadQuery) {
	b.mu.Lock()
	if b.closed || b.queue.waiting >= b.cfg.Queue {
		b.mu.Unlock()
		b.metrics.refused.Inc()
		b.answer(&channel.ReadAnswer{Query: q, Result: channel.ReadResult{Err: channel.ReadBusy}, Askers: []channel.Asker{q.Asker}})
		return
	}
	grown := b.queue.add(q, time.Now())
	ready := b.queue.ready()
	b.mu.Unlock()
	if grown && (ready == 1 || ready == b.gather.fill) {
		signal(b.wake)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Lag is how long the oldest question has waited, here or in the store.
func (b *Backfill) Lag() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.lag(time.Now())
}

// Depth is how many questions wait.
func (b *Backfill) Depth() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.waiting
}

// due is when the next batch may begin; ok=false: there is nothing to read.
func (b *Backfill) due() (at time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.queue.first()
	if f == nil {
		return at, false
	}
	return b.gather.due(f.since, b.queue.ready()), true
}

// Run reads until ctx ends.
func (b *Backfill) Run(ctx context.Context) error {
	var batches sync.WaitGroup
	defer b.close()
	defer batches.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		at, ok := b.due()
		if wait := time.Until(at); !ok || wait > 0 {
			if ok {
				timer.Reset(wait)
			}
			select {
			case <-b.wake:
			case <-timer.C:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		select {
		case b.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		batch := b.take()
		if len(batch) == 0 { // nobody waits for it any more
			<-b.slots
			continue
		}
		// It ends with its deadline or ctx; Run waits for it.
		batches.Go(func() {
			b.read(ctx, batch)
			<-b.slots
			signal(b.wake) // flights of the same keys may wait
		})
	}
}

// close answers what still waits.
func (b *Backfill) close() {
	b.mu.Lock()
	b.closed = true
	left := b.queue.flights
	b.queue = newQueue()
	b.mu.Unlock()
	for _, f := range left {
		b.land(f, channel.ReadResult{Err: channel.ReadBusy})
	}
}

// take forms a batch of flights whose key is not in the store, in order.
func (b *Backfill) take() []*flight {
	now := time.Now()
	b.mu.Lock()
	batch, expired := b.queue.take(now, b.took, b.cfg.Ranges, b.cfg.Bytes)
	if len(batch) > 0 {
		b.gather.began(now)
	}
	b.mu.Unlock()
	for _, f := range expired {
		b.land(f, channel.ReadResult{Err: channel.ReadFailed})
	}
	return batch
}

// land answers all who share a flight.
func (b *Backfill) land(f *flight, res channel.ReadResult) {
	askers := make([]channel.Asker, len(f.queries))
	for i, q := range f.queries {
		askers[i] = q.Asker
	}
	b.answer(&channel.ReadAnswer{Query: f.last(), Result: res, Askers: askers})
}

// learn takes how long a batch took, or how long it was given in vain; b.mu is held.
func (b *Backfill) learn(took time.Duration, inVain bool) {
	if inVain {
		b.took = min(max(b.took, took)*2, b.cfg.Deadline)
		return
	}
	b.took = (3*b.took + took) / 4
}
