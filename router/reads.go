package router

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

var (
	errTooManyReads = errors.New("too many reads are waiting")
	errExpired      = errors.New("not read in time")
	errRowGone      = errors.New("a channel's row is gone again")
)

// readKey names what is read: equal keys share one flight.
type readKey struct {
	channel  string
	head     bool // only the head; all below is zero
	reverse  bool
	after    uint64
	before   uint64
	limit    int
	maxBytes int
}

// readResult is one answer of the store; events are shared and never change.
type readResult struct {
	err    error
	epoch  uint64
	head   uint64
	base   uint64 // what is older may be of another epoch
	floor  uint64 // oldest offset stored; head+1 if none is
	events []*gatewayv1.BusEvent
	more   bool
}

// waiter wants a result. answer is called once, from any goroutine, and must not
// block; gone says that nobody wants it any more.
type waiter struct {
	deadline time.Time
	seen     point // what its edge has seen of the channel
	gone     func() bool
	answer   func(readResult)
}

type flight struct {
	key     readKey
	ns      *namespace.Namespace
	since   time.Time // of the first waiter
	place   uint64    // in the order of arrival
	waiters []waiter
}

// reads turns questions that memory cannot answer into few calls of the store:
// what comes within ReadWindow, in ReadPace after the batch before (see gather), or
// while all slots are taken, goes together.
//
// Invariants: every result is as young as its question (only flights that have not
// started are joined); of one key one flight is in the store at a time; at
// most Reads batches are; a batch asks for at most ReadRanges and ReadBytes; batches
// begun in t seconds <= readBurst + t / ReadPace + flights / gather.fill.
//
// run is its only owner of goroutines: one that forms batches, one for each
// batch in the store, all waited for.
type reads struct {
	// immutable after newReads
	cfg     *Config
	store   history.Store
	table   *table
	own     *ownership
	renewer *renewer
	metrics *metrics
	log     *slog.Logger
	wake    chan struct{} // capacity 1
	slots   chan struct{} // capacity Reads: one token a batch in the store

	peak atomic.Int64 // most batches that were in the store at once

	mu     sync.Mutex // guards below
	gather gather
	queue  readQueue
	took   time.Duration // by a batch of late
	closed bool
}

func newReads(cfg *Config, store history.Store, t *table, own *ownership, m *metrics, log *slog.Logger) *reads {
	return &reads{
		cfg: cfg, store: store, table: t, own: own, metrics: m, log: log, renewer: &renewer{store, m, log},
		wake: make(chan struct{}, 1), slots: make(chan struct{}, cfg.Reads), gather: newGather(cfg), queue: newReadQueue(),
	}
}

// add asks; past ReadQueue the answer is an error at once.
func (r *reads) add(key readKey, ns *namespace.Namespace, w waiter) {
	r.mu.Lock()
	if r.closed || r.queue.waiting >= r.cfg.ReadQueue {
		r.mu.Unlock()
		r.metrics.readsRefused.Inc()
		w.answer(readResult{err: errTooManyReads})
		return
	}
	grown := r.queue.add(key, ns, w, time.Now())
	ready := r.queue.ready()
	r.mu.Unlock()
	if grown && (ready == 1 || ready == r.gather.fill) {
		signal(r.wake)
	}
}

// due is when the next batch may begin; ok=false: there is nothing to read.
func (r *reads) due() (at time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.queue.first()
	if f == nil {
		return at, false
	}
	return r.gather.due(f.since, r.queue.ready()), true
}

// lag is how long the oldest question has waited, here or in the store.
func (r *reads) lag() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.lag(time.Now())
}

// depth is how many questions wait.
func (r *reads) depth() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.waiting
}

func (r *reads) run(ctx context.Context) error {
	var batches sync.WaitGroup
	defer r.close()
	defer batches.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		at, ok := r.due()
		if wait := time.Until(at); !ok || wait > 0 {
			if ok {
				timer.Reset(wait)
			}
			select {
			case <-r.wake:
			case <-timer.C:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		batch := r.take()
		if len(batch) == 0 { // nobody waits for it any more
			<-r.slots
			continue
		}
		// It ends with its deadline or ctx; run waits for it.
		batches.Go(func() {
			r.batch(ctx, batch)
			<-r.slots
			signal(r.wake) // flights of the same keys may wait
		})
	}
}

// close answers what still waits.
func (r *reads) close() {
	r.mu.Lock()
	r.closed = true
	left := r.queue.flights
	r.queue = newReadQueue()
	r.mu.Unlock()
	for _, f := range left {
		r.answer(f, readResult{err: context.Canceled})
	}
}

// take forms a batch of flights whose key is not in the store, in order.
func (r *reads) take() []*flight {
	now := time.Now()
	r.mu.Lock()
	batch, expired := r.queue.take(now, r.took, r.cfg.ReadRanges, r.cfg.ReadBytes)
	if len(batch) > 0 {
		r.gather.began(now)
	}
	r.mu.Unlock()
	for _, f := range expired {
		r.answer(f, readResult{err: errExpired})
	}
	return batch
}

// wanted says that somebody will still wait when a batch that begins now has ended, or
// has half of its time left: no work is done for who has left.
func (f *flight) wanted(now time.Time, takes time.Duration) bool {
	for _, w := range f.waiters {
		if left := w.deadline.Sub(now); left > 0 && left >= min(takes, w.deadline.Sub(f.since)/2) && !w.gone() {
			return true
		}
	}
	return false
}

func (f *flight) deadline() time.Time {
	var last time.Time
	for _, w := range f.waiters {
		if w.deadline.After(last) {
			last = w.deadline
		}
	}
	return last
}

func (r *reads) answer(f *flight, res readResult) {
	for _, w := range f.waiters {
		w.answer(res)
	}
}

// batch reads for some flights: heads and events in one call, and rows for channels
// that no one has asked for before in another.
func (r *reads) batch(ctx context.Context, flights []*flight) {
	r.metrics.readsRunning.Inc()
	defer r.metrics.readsRunning.Dec()
	r.metrics.readRanges.Observe(float64(len(flights)))
	running := int64(len(r.slots))
	for peak := r.peak.Load(); running > peak && !r.peak.CompareAndSwap(peak, running); {
		peak = r.peak.Load()
	}
	var last time.Time
	for _, f := range flights {
		if d := f.deadline(); d.After(last) {
			last = d
		}
	}
	ctx, cancel := context.WithDeadline(ctx, last)
	defer cancel()
	began := time.Now()
	marks := r.mark(flights)
	results := make([]readResult, len(flights))
	if missing := r.read(ctx, flights, results); len(missing) > 0 {
		r.create(ctx, flights, missing, results)
	}
	r.renew(ctx, flights, marks, results)
	for i, f := range flights {
		if results[i].err == nil {
			results[i].base = results[i].head
			r.keep(f, marks[i], &results[i])
		}
	}
	r.mu.Lock()
	r.learnLocked(time.Since(began), ctx.Err() != nil)
	for _, f := range flights {
		r.queue.back(f.key)
	}
	r.mu.Unlock()
	for i, f := range flights {
		r.answer(f, results[i])
	}
	r.table.shrink()
}

// learnLocked takes how long a batch took, or how long it was given in vain.
func (r *reads) learnLocked(took time.Duration, inVain bool) {
	if inVain {
		r.took = min(max(r.took, took)*2, r.cfg.API.ReadDeadline)
		return
	}
	r.took = (3*r.took + took) / 4
}

// mark is where a channel stood before it was read.
type mark struct {
	ch      *channel // nil: not here, or memory numbers it
	ours    bool     // what is read is kept
	version uint64
	trust   trust
	shown   point
}

func (r *reads) mark(flights []*flight) []mark {
	marks := make([]mark, len(flights))
	t := r.own.now()
	for i, f := range flights {
		if f.ns.Durability != namespace.Committed {
			continue // memory knows better
		}
		ours := r.own.owned(f.key.channel)
		s := r.table.lock(f.key.channel)
		ch := s.channels[f.key.channel]
		if ours {
			ch = r.table.getLocked(s, f.key.channel, f.ns)
		}
		if ch != nil {
			marks[i] = mark{ch, ours, ch.version, t, ch.shown}
		}
		s.mu.Unlock()
	}
	return marks
}

// storeRange is a key as the store takes it. A head is read as a page behind all
// offsets: one call for everything, and on the connections of readers, not on those
// that publishes need.
func (k *readKey) storeRange() history.Range {
	if k.head {
		return history.Range{Channel: k.channel, After: wire.MaxOffset, Limit: 1}
	}
	return history.Range{
		Channel: k.channel, After: k.after, Before: k.before, Reverse: k.reverse, Limit: k.limit, MaxBytes: k.maxBytes,
	}
}

// read asks for all; it returns the flights whose channel has no row.
func (r *reads) read(ctx context.Context, flights []*flight, results []readResult) (missing []int) {
	queries := make([]history.Range, len(flights))
	for i, f := range flights {
		queries[i] = f.key.storeRange()
	}
	r.metrics.storeCalls.read.Inc()
	pages, err := r.store.Read(ctx, queries)
	for i := range flights {
		switch {
		case err != nil:
			results[i].err = err
		case !pages[i].Exists:
			missing = append(missing, i)
		default:
			p := &pages[i]
			results[i] = readResult{epoch: p.Epoch, head: p.Head, floor: p.First, events: busEvents(p.Events), more: p.More}
		}
	}
	return missing
}

// create makes rows, so that a channel has an epoch before its first event. What was
// published since the first look is read once more: it is not history that is gone.
func (r *reads) create(ctx context.Context, flights []*flight, missing []int, results []readResult) {
	at := make(map[string]int, len(missing)) // Heads wants distinct channels
	var queries []history.HeadQuery
	for _, i := range missing {
		name := flights[i].key.channel
		if _, ok := at[name]; !ok {
			at[name] = len(queries)
			queries = append(queries, history.HeadQuery{Channel: name})
		}
	}
	r.metrics.storeCalls.heads.Inc()
	found, err := r.store.Heads(ctx, queries)
	var again []*flight
	var of []int
	for _, i := range missing {
		if err != nil {
			results[i].err = err
			continue
		}
		h := &found[at[flights[i].key.channel]]
		results[i] = readResult{epoch: h.Epoch, head: h.Offset, floor: h.Offset + 1}
		if h.Offset > 0 {
			again, of = append(again, flights[i]), append(of, i)
		}
	}
	if len(again) == 0 {
		return
	}
	second := make([]readResult, len(again))
	for _, i := range r.read(ctx, again, second) {
		second[i].err = errRowGone
	}
	for i, res := range second {
		results[of[i]] = res
	}
}

// keep takes what was read into the table, if the channel is ours. What is here of
// another's goes if it is of an epoch that is over.
func (r *reads) keep(f *flight, m mark, res *readResult) {
	if m.ch == nil {
		return
	}
	s := r.table.lock(f.key.channel)
	defer s.mu.Unlock()
	if s.channels[f.key.channel] != m.ch {
		return // evicted meanwhile
	}
	if !m.ours {
		if m.ch.known && m.ch.epoch < res.epoch {
			r.table.forgetLocked(m.ch)
		}
		return
	}
	r.table.loadedLocked(m.ch, res.epoch, res.head, m.version, m.trust)
	if !m.ch.known || m.ch.epoch != res.epoch {
		return
	}
	res.base = m.ch.baseLocked(res.epoch, res.head)
	m.ch.floor = res.floor
	if len(res.events) > 0 && !f.key.reverse && !res.more {
		r.table.refillLocked(m.ch, res.events)
	}
}
