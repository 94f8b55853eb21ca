package router

import (
	"context"
	"sync/atomic"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// Channels of asynchronous namespaces are numbered in their owner's memory, like
// those without a store, and written behind: an event is acked when the bus server
// has answered a flush that came after it (async_ack.go), or when the store has it,
// whichever is first. What is not written yet stays in the tail (async_write.go).
//
// What an owner hands to the next one is epoch, head, base, tail, keys, and of
// asyncState row and written (handover_piece.go). Who takes a channel without that
// begins a new epoch behind what the store has.

// asyncLoad is how long a publish on a channel that is not known waits for the
// store to tell its head. Without it the epoch begins at 0, and again behind what
// the store has, once that answers.
const asyncLoad = 500 * time.Millisecond

// asyncState is what a channel has that is written behind. Guarded by its shard's mu.
//
//	written <= head; events behind written are the end of the tail
//	bytes is that of those events, unless loose
type asyncState struct {
	row     point  // of the store, when it was last read or written; epoch 0: not known
	written uint64 // offsets up to it are in the store
	wroteMS int64  // when the last one was written, by the clock of events; 0: not here
	bytes   int64  // counted in writeBehind.bytes; none is let go
	loose   bool   // too much is unwritten: the tail keeps what any tail keeps
	gone    uint64 // of what was let go unwritten the last offset
	queued  bool   // in the writer's list, or in its hands
	doubt   bool   // the store has shown less than it had, or another's: the writer looks what it has
	acks    []ack  // neither bus nor store has answered
	unsure  uint64 // up to this offset only the store acks: a flush failed
}

// ack is a publication with what it is to be told.
type ack struct {
	p   *publication
	res result
}

// writeBehind is the part of a sequencer that acks before it writes.
type writeBehind struct {
	lane   lane         // channels with publishes
	look   lane         // of those, whose row the store has to tell first: it may take its time
	list   lane         // channels with something to write
	queued atomic.Int64 // channels in list or being written
	bytes  atomic.Int64 // unwritten, that is not let go
	away   atomic.Int64 // the store failed: nobody but the writer tries before this time (Unix ns); 0: it answers
	failed atomic.Int64 // times in a row
	acker  acker
}

func (w *writeBehind) storeAway() bool { return time.Now().UnixNano() < w.away.Load() }

// storeFailed has the store left alone for 1 s, then 2 and 4: each try on a store that
// hangs holds up channels that are not known for asyncLoad.
func (w *writeBehind) storeFailed() {
	wait := time.Second << min(w.failed.Add(1)-1, 2)
	w.away.Store(time.Now().Add(wait).UnixNano())
}

func (w *writeBehind) storeAnswered() {
	w.failed.Store(0)
	w.away.Store(0)
}

// unwrittenLocked is how many events the store does not have.
func (ch *channel) unwrittenLocked() uint64 {
	if ch.async == nil || !ch.known {
		return 0
	}
	return ch.head - ch.async.written
}

// blindLocked says that the channel began without a word of the store, and none came since.
func (ch *channel) blindLocked() bool { return ch.async.row.epoch == 0 && ch.async.written == 0 }

// holeLocked says that something of what is unwritten was let go.
func (ch *channel) holeLocked() bool {
	return ch.unwrittenLocked() > 0 && ch.tail.firstOr(ch.head+1) > ch.async.written+1
}

// storedLocked is our epoch, and up to where the store is known to have it.
func (ch *channel) storedLocked() point { return point{ch.epoch, ch.async.written} }

// doubtLocked compares what the store has shown with what it had before. If that is less,
// or another's, the writer looks and begins a new epoch behind it, though nothing is to
// be written.
func (s *sequencer) doubtLocked(ch *channel, known, shown point) bool {
	a := ch.async
	if shown.epoch <= ch.epoch && shown.offset >= known.offset || ch.epoch != known.epoch {
		return false
	}
	a.row, a.doubt = point{}, true
	if !a.queued {
		a.queued = true
		s.behind.queued.Add(1)
		s.behind.list.push(ch)
	}
	return true
}

// unlostLocked is how many events of ours the store does not have, and nobody has counted
// as lost.
func (ch *channel) unlostLocked() uint64 {
	if ch.unwrittenLocked() == 0 {
		return 0
	}
	return ch.head - max(ch.async.written, ch.async.gone)
}

// commitAsync numbers, fans out and leaves the rest to acker and writer. It never waits
// for the store: channels whose row has to be read come again in another lane.
func (s *sequencer) commitAsync(_ context.Context, batch []*work) error {
	for _, w := range batch {
		if w.look = s.unknownAsync(w.ch); w.look {
			w.back = w.pubs
			continue
		}
		s.commitOneAsync(w, nil)
	}
	s.behind.acker.signal()
	return nil
}

// commitLooked does the same for channels that are not known: it asks the store for all
// their rows, and goes on without them if it does not answer in time.
func (s *sequencer) commitLooked(ctx context.Context, batch []*work) error {
	rows := s.asyncRows(ctx, batch)
	for i, w := range batch {
		s.commitOneAsync(w, rows[i])
	}
	s.behind.acker.signal()
	return nil
}

// unknownAsync says that the row of a channel has to be read, and can be.
func (s *sequencer) unknownAsync(ch *channel) bool {
	ch.shard.mu.Lock()
	ready := s.asyncReadyLocked(ch)
	ch.shard.mu.Unlock()
	return !ready && !s.behind.storeAway() && s.own.owned(ch.name) // else it is served here in vain
}

// asyncRows asks the store for the rows of channels that are not known; nil: known,
// or the store does not answer.
func (s *sequencer) asyncRows(ctx context.Context, batch []*work) []*history.Head {
	rows := make([]*history.Head, len(batch))
	var queries []history.HeadQuery
	var which []int
	for i, w := range batch {
		if s.unknownAsync(w.ch) {
			queries, which = append(queries, history.HeadQuery{Channel: w.ch.name}), append(which, i)
		}
	}
	if len(queries) == 0 {
		return rows
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(asyncLoad, s.cfg.StoreTimeout))
	defer cancel()
	s.metrics.storeCalls.heads.Inc()
	heads, err := s.store.Heads(ctx, queries)
	if err != nil {
		s.behind.storeFailed()
		return rows
	}
	s.behind.storeAnswered()
	for n, i := range which {
		rows[i] = &heads[n]
	}
	return rows
}

func (s *sequencer) asyncHeldLocked(ch *channel) bool {
	return ch.async != nil && ch.known && ch.tenure.holds()
}

// asyncReadyLocked: what began blind, and has nothing to write, has to ask again.
func (s *sequencer) asyncReadyLocked(ch *channel) bool {
	return s.asyncHeldLocked(ch) && (ch.head > 0 || !ch.blindLocked())
}

// nextEpoch is larger than after, and than what any owner before this one began. Of one
// view none is begun again, also of channels that were evicted: what is begun past
// the generation takes that along.
func (s *sequencer) nextEpoch(after uint64) uint64 {
	view := s.own.revision() << epochShift
	for {
		generation := s.generation.Load()
		epoch := max(view+generation, after+1)
		ahead := epoch - view
		if ahead <= generation || ahead >= 1<<epochShift || s.generation.CompareAndSwap(generation, ahead) {
			return epoch
		}
	}
}

// asyncLocked readies a channel that is written behind, if it is our turn. row
// is the store's, nil if it is not known. An epoch seen by an edge that is above
// ours shows an owner that we never saw.
func (s *sequencer) asyncLocked(ch *channel, row *history.Head, seen uint64) turn {
	ready, held := s.asyncReadyLocked(ch), s.asyncHeldLocked(ch)
	if turn := s.hand.turnLocked(ch); turn != turnServe {
		return turn
	}
	t := s.own.now()
	unseen := s.unseenLocked(ch, seen)
	if ch.async == nil {
		ch.async = new(asyncState)
	}
	switch {
	case held && !unseen && (ready || row == nil):
	case ready || ch.unwrittenLocked() > 0: // what is unwritten goes along
		s.metrics.renewals.takeover.Inc()
		s.table.reepochLocked(ch, s.nextEpoch(max(seen, ch.epoch, ch.tenure.floor.epoch)))
		for i := range ch.async.acks { // they wait for the same events
			ch.async.acks[i].res.epoch = ch.epoch
		}
	default:
		s.beginAsyncLocked(ch, row, seen)
	}
	ch.trust = t
	return turnServe
}

func (s *sequencer) beginAsyncLocked(ch *channel, row *history.Head, seen uint64) {
	var at point
	if row != nil {
		at = point{row.Epoch, row.Offset}
	}
	if at.offset > 0 {
		s.metrics.renewals.takeover.Inc()
	}
	s.table.moveLocked(ch, s.nextEpoch(max(seen, ch.epoch, at.epoch, ch.tenure.floor.epoch)), at.offset)
	ch.keys = nil
	s.table.countKeysLocked(ch)
	a := ch.async
	a.row, a.written, a.gone, a.unsure = at, at.offset, at.offset, 0
}

// reepochLocked begins an epoch that goes on with what the one before has in memory.
func (t *table) reepochLocked(ch *channel, epoch uint64) {
	ch.epoch = epoch
	ch.base = point{epoch, ch.head}
	ch.shown = ch.shown.max(point{epoch, ch.head})
	ch.version++
}

func (s *sequencer) commitOneAsync(w *work, row *history.Head) {
	ch := w.ch
	ch.shard.mu.Lock()
	switch s.asyncLocked(ch, row, 0) {
	case turnWait:
		ch.shard.mu.Unlock()
		w.back = w.pubs
		return
	case turnPass:
		ch.shard.mu.Unlock()
		s.finishAll(w.pubs, notOwner)
		return
	}
	epoch, head, now := ch.epoch, ch.head, s.cfg.Now().UnixMilli()
	fresh := make([]history.Event, 0, len(w.pubs))
	for _, p := range w.pubs {
		offset, repeat := ch.keyed(p, head+uint64(len(fresh))+1)
		ch.async.acks = append(ch.async.acks, ack{p, result{epoch: epoch, offset: offset, repeat: repeat}})
		if !repeat {
			p.event.Offset, p.event.TimeMS = offset, now
			fresh = append(fresh, p.event)
		}
	}
	s.table.countKeysLocked(ch)
	events := busEvents(fresh)
	base := ch.baseLocked(epoch, head)
	if len(events) > 0 {
		s.growAsyncLocked(ch, events)
		s.fan.publishedLocked(ch)
	}
	known := ch.async.takeAcks(epoch, 0, ch.async.written) // repeats of what is in the store
	push := s.queueWriteLocked(ch)
	mark, failures := point{epoch, ch.head}, s.behind.acker.failed()
	ch.shard.mu.Unlock()
	if len(events) > 0 {
		s.fan.out(ch.name, epoch, base, events)
	}
	if !s.behind.acker.add(ch, mark, failures) {
		unsure(map[*channel]point{ch: mark})
	}
	if push {
		s.behind.list.push(ch)
	}
	s.acked(known, Committed)
}

// growAsyncLocked takes new events. Past the bound of what may be unwritten the
// channel keeps no more than any other does, and what it lets go is counted.
func (s *sequencer) growAsyncLocked(ch *channel, events []*gatewayv1.BusEvent) {
	a := ch.async
	size := int64(0)
	for _, e := range events {
		size += eventSize(e)
	}
	keep := s.bounds()
	if !a.loose && s.behind.bytes.Load()+size > s.cfg.AsyncBytes {
		s.behind.bytes.Add(-a.bytes)
		a.bytes, a.loose = 0, true
		s.metrics.asyncLoose.Inc()
	}
	if !a.loose {
		a.bytes += size
		s.behind.bytes.Add(size)
		keep.pinned = a.written + 1
	}
	s.table.grewLocked(ch, events, keep)
	s.letGoLocked(ch)
}

// letGoLocked counts what the tail no longer has and the store never got.
func (s *sequencer) letGoLocked(ch *channel) {
	a, last := ch.async, ch.head
	if len(ch.tail.events) > 0 {
		last = ch.tail.first - 1
	}
	if from := max(a.gone, a.written); last > from {
		s.metrics.asyncLost.Add(float64(last - from))
		a.gone = last
	}
}

// queueWriteLocked says that the caller pushes the channel to the writer.
func (s *sequencer) queueWriteLocked(ch *channel) bool {
	if ch.async.queued || ch.unwrittenLocked() == 0 {
		return false
	}
	ch.async.queued = true
	s.behind.queued.Add(1)
	return true
}

// takeAcks removes those of an epoch behind one offset, up to another.
func (a *asyncState) takeAcks(epoch, after, upTo uint64) []ack {
	var taken []ack
	kept := a.acks[:0]
	for _, k := range a.acks {
		if k.res.epoch == epoch && k.res.offset > after && k.res.offset <= upTo {
			taken = append(taken, k)
		} else {
			kept = append(kept, k)
		}
	}
	clear(a.acks[len(kept):])
	if a.acks = kept; len(kept) == 0 {
		a.acks = nil
	}
	return taken
}

// acked tells publications what their events have survived.
func (s *sequencer) acked(acks []ack, d Durability) {
	for _, k := range acks {
		k.res.durability = d
		s.finish(k.p, k.res)
	}
}
