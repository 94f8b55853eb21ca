package router

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

// sequencer numbers what is published on each channel: it queues publications,
// forms batches over many channels, commits them, and fans out what was stored.
//
// Invariants: at most one run of a channel is in flight; a publication is
// answered once; what is queued is bounded in events and bytes, past the bound
// it is refused (overflow) and counted.
//
// Goroutines: Config.Committers that write to the store, and one for channels without a
// store. Their owner is Router.Run.
type sequencer struct {
	// immutable after newSequencer
	cfg     *Config
	table   *table
	own     *ownership
	store   history.Store
	fan     *fan
	renewer *renewer
	metrics *metrics
	log     *slog.Logger

	committed lane // channels with a store
	volatile  lane // channels without

	hand *handover // whose turn it is; set by newHandover

	events     atomic.Int64 // queued or in flight
	bytes      atomic.Int64
	quick      struct{ events, bytes atomic.Int64 } // of them, those that memory numbers
	generation atomic.Uint64                        // of epochs of memory within one revision

	wait time.Duration // after the first failure of the store; tests shorten it before run
}

// lane is the channels that have something to commit, in order.
type lane struct {
	wake chan struct{} // capacity: its committers

	mu    sync.Mutex // guards below
	ready []*channel
}

func newLane(committers int) lane { return lane{wake: make(chan struct{}, committers)} }

func newSequencer(cfg *Config, t *table, own *ownership, store history.Store, f *fan, m *metrics, log *slog.Logger) *sequencer {
	s := &sequencer{
		cfg: cfg, table: t, own: own, store: store, fan: f, metrics: m, log: log, renewer: &renewer{store, m, log},
		committed: newLane(cfg.Committers), volatile: newLane(1), wait: 50 * time.Millisecond,
	}
	s.generation.Store(1)
	t.volatile = func() { s.generation.Add(1) }
	return s
}

func (l *lane) push(ch *channel) {
	l.mu.Lock()
	l.ready = append(l.ready, ch)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // every committer has been woken already
	}
}

func (l *lane) pop() *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ready) == 0 {
		l.ready = nil
		return nil
	}
	ch := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	return ch
}

func (s *sequencer) laneOf(ns *namespace.Namespace) *lane {
	if ns.Durability == namespace.None {
		return &s.volatile
	}
	return &s.committed
}

func (s *sequencer) push(ch *channel) { s.laneOf(ch.ns).push(ch) }

// enqueue takes a publication or finishes it with overflow. It never blocks.
func (s *sequencer) enqueue(p *machine.Publication) {
	p.Since = time.Now()
	p.Measure()
	if !s.reserve(p) {
		s.refuse(p)
		return
	}
	shard := s.table.lock(p.Channel)
	ch := s.table.getLocked(shard, p.Channel, p.Namespace)
	if int64(ch.pendingBytes)+p.Size() > s.cfg.QueueBytes/4 {
		shard.mu.Unlock()
		s.refuse(p)
		return
	}
	if ch.turned {
		shard.mu.Unlock()
		s.metrics.handover.turned.Inc()
		s.finish(p, machine.NotOwner)
		return
	}
	ch.pending = append(ch.pending, p)
	ch.pendingBytes += int(p.Size())
	push := ch.readyLocked()
	shard.mu.Unlock()
	if push {
		s.laneOf(p.Namespace).push(ch)
	}
	s.table.shrink()
}

// reserve takes a place in the queue. What memory numbers has a quarter beside, so
// that it goes on while all that waits for the store fills the queue.
func (s *sequencer) reserve(p *machine.Publication) bool {
	events, bytes := s.events.Add(1), s.bytes.Add(p.Size())
	ok := events <= s.cfg.QueueEvents && bytes <= s.cfg.QueueBytes
	if p.Namespace.Durability != namespace.Committed {
		events, bytes = s.quick.events.Add(1), s.quick.bytes.Add(p.Size())
		ok = ok || events <= max(1, s.cfg.QueueEvents/4) && bytes <= s.cfg.QueueBytes/4
	}
	return ok
}

// refuse lets go of what the publication carries: the call that brought it may
// wait for others, and is not counted.
func (s *sequencer) refuse(p *machine.Publication) {
	s.metrics.overflows.Inc()
	p.Event = history.Event{}
	s.finish(p, machine.Overflow)
}

// readyLocked marks a channel for the ready list; true: the caller pushes it.
func (ch *channel) readyLocked() bool {
	if ch.inflight || ch.ready || ch.moving || len(ch.pending) == 0 {
		return false
	}
	ch.ready = true
	return true
}

// finish answers a publication and gives back its place in the queue.
func (s *sequencer) finish(p *machine.Publication, res machine.Result) {
	s.release(p)
	s.metrics.publishes.of(res).Inc()
	p.Finish(res)
}

func (s *sequencer) release(p *machine.Publication) {
	s.events.Add(-1)
	s.bytes.Add(-p.Size())
	if p.Namespace.Durability != namespace.Committed {
		s.quick.events.Add(-1)
		s.quick.bytes.Add(-p.Size())
	}
}

// work is what a batch has of one channel.
type work struct {
	ch      *channel
	pubs    []*machine.Publication
	back    []*machine.Publication // to be queued again, in order
	epoch   uint64
	head    uint64
	version uint64 // of the channel when it was taken
	lost    bool   // the belief was wrong: what is left is queued again
	must    bool   // the head must be read: unknown, or there are suspects
	keyed   bool   // keys must be looked up, with the head that they are numbered behind
}

// take forms the next batch: all ready channels in order, up to the bounds.
func (s *sequencer) take(l *lane) []*work {
	var batch []*work
	events, bytes := 0, 0
	for events < s.cfg.BatchEvents && bytes < s.cfg.BatchBytes {
		ch := l.pop()
		if ch == nil {
			break
		}
		ch.shard.mu.Lock()
		ch.ready = false
		var w *work
		turn := s.hand.turnLocked(ch)
		if turn != turnWait && !ch.moving {
			if w = s.takeLocked(ch, s.cfg.BatchEvents-events, s.cfg.BatchBytes-bytes); w == nil {
				s.hand.idleLocked(ch)
			}
		}
		ch.shard.mu.Unlock()
		if w == nil {
			continue
		}
		if turn == turnPass && !s.hand.passOn(w) {
			s.done(w)
			continue
		}
		for _, p := range w.pubs {
			bytes += int(p.Size())
		}
		events += len(w.pubs)
		batch = append(batch, w)
	}
	return batch
}

// takeLocked takes the oldest publications of a channel whose callers still wait.
func (s *sequencer) takeLocked(ch *channel, events, bytes int) *work {
	w := &work{ch: ch, epoch: ch.epoch, head: ch.head, version: ch.version}
	n, size := 0, 0
	for n < len(ch.pending) && len(w.pubs) < events && (size < bytes || len(w.pubs) == 0) {
		p := ch.pending[n]
		ch.pending[n] = nil
		n++
		ch.pendingBytes -= int(p.Size())
		switch {
		case p.Take():
			w.pubs = append(w.pubs, p)
			size += int(p.Size())
		case p.Stage() == machine.Abandoned:
			s.metrics.abandoned.Inc()
			s.release(p)
		}
	}
	if ch.pending = ch.pending[n:]; len(ch.pending) == 0 {
		ch.pending = nil
	}
	if len(w.pubs) == 0 {
		ch.suspects = nil // nobody waits for what became of them
		return nil
	}
	w.must = !ch.known || len(ch.suspects) > 0
	ch.inflight = true
	return w
}

// done ends the run of a channel: what must come again goes to the front.
func (s *sequencer) done(w *work) {
	ch := w.ch
	ch.shard.mu.Lock()
	if len(w.back) > 0 {
		for _, p := range w.back {
			ch.pendingBytes += int(p.Size())
			p.Requeue()
		}
		ch.pending = append(w.back, ch.pending...)
	}
	if len(ch.pending) == 0 {
		ch.suspects = nil // nobody waits for what became of them
	}
	ch.inflight = false
	s.hand.idleLocked(ch)
	push := ch.readyLocked()
	ch.shard.mu.Unlock()
	if push {
		s.push(ch)
	}
}

// run is one committer of a lane, until ctx ends.
func (s *sequencer) run(ctx context.Context, l *lane, commit func(context.Context, []*work) error) error {
	failures := 0
	for {
		batch := s.take(l)
		if len(batch) == 0 {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		err := commit(ctx, batch)
		for _, w := range batch {
			s.done(w)
		}
		s.table.shrink()
		if err == nil {
			failures = 0
			continue
		}
		if failures == 0 {
			s.log.Warn("the store failed; publishes wait and are tried again", "error", err)
		}
		failures++
		if !pause(ctx, backoff(s.wait, failures)) {
			return nil
		}
	}
}

// backoff is wait, doubled per failure up to twenty times, with jitter.
func backoff(wait time.Duration, failures int) time.Duration {
	d := min(20*wait, wait<<min(failures-1, 5))
	return d/2 + rand.N(d/2+1)
}
