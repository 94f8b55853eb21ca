package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// asyncWork is what the writer has of one channel. It may be overtaken: whatever it
// finds counts only while the channel is still in the epoch.
type asyncWork struct {
	ch      *channel
	epoch   uint64
	written uint64
	row     point
	hole    bool // events behind written were let go
	doubt   bool // the row is looked at though there may be nothing to write
	events  []*gatewayv1.BusEvent
}

// runWrites writes behind, until ctx ends. Its owner is Router.Run.
func (s *sequencer) runWrites(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		batch := s.takeWrites()
		if len(batch) == 0 {
			select {
			case <-s.behind.list.wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		err := s.write(ctx, batch)
		for _, w := range batch {
			s.writeDone(w, err)
		}
		if err == nil {
			failures = 0
			s.behind.storeAnswered()
			continue
		}
		s.behind.storeFailed()
		if failures == 0 {
			s.log.Warn("the store failed; what is written behind waits and is tried again", "error", err)
		}
		failures++
		if !pause(ctx, backoff(s.wait, failures)) {
			break
		}
	}
	return nil
}

// takeWrites forms a batch of channels in order, up to the bounds.
func (s *sequencer) takeWrites() []*asyncWork {
	var batch []*asyncWork
	events, size := 0, 0
	for events < s.cfg.BatchEvents && size < s.cfg.BatchBytes {
		ch := s.behind.list.pop()
		if ch == nil {
			break
		}
		ch.shard.mu.Lock()
		w := ch.asyncWorkLocked(s.cfg.BatchEvents-events, s.cfg.BatchBytes-size)
		ch.shard.mu.Unlock()
		for _, e := range w.events {
			size += int(eventSize(e))
		}
		events += len(w.events)
		batch = append(batch, w)
	}
	return batch
}

func (ch *channel) asyncWorkLocked(most, bytes int) *asyncWork {
	a := ch.async
	w := &asyncWork{ch: ch, epoch: ch.epoch, written: a.written, row: a.row, doubt: a.doubt && ch.known}
	if ch.unwrittenLocked() == 0 {
		return w
	}
	if w.hole = ch.holeLocked(); !w.hole {
		w.events, _ = ch.tail.after(a.written, most, bytes)
	}
	return w
}

func (s *sequencer) writeDone(w *asyncWork, err error) {
	ch := w.ch
	ch.shard.mu.Lock()
	if w.doubt && err == nil {
		ch.async.doubt = false
	}
	again := ch.unwrittenLocked() > 0 || ch.async.doubt
	ch.async.queued = again
	ch.shard.mu.Unlock()
	if again {
		s.behind.list.push(ch)
	} else {
		s.behind.queued.Add(-1)
	}
}

// write brings a batch to the store: rows first, which may have to begin the epoch
// there, or the epoch again behind what is there.
func (s *sequencer) write(ctx context.Context, batch []*asyncWork) error {
	ctx = context.WithoutCancel(ctx) // only the store's own deadline ends it
	if err := s.readRows(ctx, batch); err != nil {
		return err
	}
	if err := s.renewRows(ctx, batch); err != nil {
		return err
	}
	var ready []*asyncWork
	for _, w := range batch {
		if w.row == (point{w.epoch, w.written}) && len(w.events) > 0 {
			ready = append(ready, w)
		}
	}
	return s.appendAsync(ctx, ready)
}

// readRows loads what is not known to be in the epoch.
func (s *sequencer) readRows(ctx context.Context, batch []*asyncWork) error {
	var queries []history.HeadQuery
	var asked []*asyncWork
	for _, w := range batch {
		if w.row.epoch != w.epoch && (len(w.events) > 0 || w.hole || w.doubt) {
			queries, asked = append(queries, history.HeadQuery{Channel: w.ch.name}), append(asked, w)
		}
	}
	if len(queries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	s.metrics.storeCalls.heads.Inc()
	heads, err := s.store.Heads(ctx, queries)
	if err != nil {
		return fmt.Errorf("load heads: %w", err)
	}
	for i, w := range asked {
		w.row = point{heads[i].Epoch, heads[i].Offset}
	}
	return s.findWritten(ctx, asked)
}

// findWritten recognises events of writes whose outcome was unknown, also if the tail has
// let some of them go meanwhile.
func (s *sequencer) findWritten(ctx context.Context, batch []*asyncWork) error {
	var ranges []history.Range
	var ours [][]*gatewayv1.BusEvent
	var of []*asyncWork
	for _, w := range batch {
		if w.row.epoch != w.epoch || w.row.offset <= w.written {
			continue
		}
		from, events := w.ours()
		if len(events) == 0 {
			continue // nothing that is still here was written
		}
		ranges = append(ranges, history.Range{Channel: w.ch.name, After: from, Limit: len(events)})
		ours, of = append(ours, events), append(of, w)
	}
	if len(ranges) == 0 {
		return nil
	}
	s.metrics.storeCalls.read.Inc()
	pages, err := s.store.Read(ctx, ranges)
	if err != nil {
		return fmt.Errorf("read what may have been written: %w", err)
	}
	for i, w := range of {
		if pages[i].Epoch != w.epoch {
			continue
		}
		if n := common(pages[i].Events, ours[i]); n > 0 { // what is behind them is another's
			w.written, w.hole = ours[i][n-1].Offset, false
			s.wrote(w, w.written)
			for len(w.events) > 0 && w.events[0].Offset <= w.written {
				w.events = w.events[1:]
			}
		}
	}
	return nil
}

// ours is what is here of what the row has beyond written, and the offset before it.
func (w *asyncWork) ours() (from uint64, events []*gatewayv1.BusEvent) {
	w.ch.shard.mu.Lock()
	defer w.ch.shard.mu.Unlock()
	t := &w.ch.tail
	if from = w.written; len(t.events) > 0 {
		from = max(from, t.first-1)
	}
	if w.row.offset > from {
		events, _ = t.after(from, int(min(w.row.offset-from, uint64(len(t.events)))), 0)
	}
	return from, events
}

// common is how many events the store has as they are here, from the first on.
func common(stored []history.Event, ours []*gatewayv1.BusEvent) int {
	for i, e := range busEvents(stored[:min(len(stored), len(ours))]) {
		o := ours[i]
		if e.Offset != o.Offset || e.TimeMs != o.TimeMs || e.Binary != o.Binary || e.From != o.From || !bytes.Equal(e.Data, o.Data) || !bytes.Equal(e.Meta, o.Meta) {
			return i
		}
	}
	return min(len(stored), len(ours))
}

// appendAsync writes runs; what the store refuses is found by halving.
func (s *sequencer) appendAsync(ctx context.Context, batch []*asyncWork) error {
	if len(batch) == 0 {
		return nil
	}
	runs := make([]history.Run, len(batch))
	for i, w := range batch {
		runs[i] = w.run()
	}
	timeout, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	s.metrics.storeCalls.append.Inc()
	outcomes, err := s.store.Append(timeout, runs)
	var refused *history.RefusedError
	switch {
	case errors.As(err, &refused):
		return s.halveAsync(ctx, batch, refused)
	case err != nil:
		s.metrics.unknown.Inc()
		for _, w := range batch {
			s.rowUnknown(w)
		}
		return fmt.Errorf("append: %w", err)
	}
	for i, w := range batch {
		if outcomes[i] == history.Stored {
			s.wrote(w, runs[i].NewHead())
			continue
		}
		s.metrics.races.Inc()
		s.rowUnknown(w)
	}
	s.metrics.batchEvents.Observe(float64(countEvents(runs)))
	return nil
}

// run has no keys: they are as mortal as the owner.
func (w *asyncWork) run() history.Run {
	run := history.Run{Channel: w.ch.name, Epoch: w.epoch, Head: w.written, Events: make([]history.Event, len(w.events))}
	for i, e := range w.events {
		run.Events[i] = history.Event{Offset: e.Offset, TimeMS: int64(e.TimeMs), Data: e.Data, Binary: e.Binary, From: e.From, Meta: e.Meta}
	}
	return run
}

func (s *sequencer) halveAsync(ctx context.Context, batch []*asyncWork, refused error) error {
	if len(batch) > 1 {
		return errors.Join(s.appendAsync(ctx, batch[:len(batch)/2]), s.appendAsync(ctx, batch[len(batch)/2:]))
	}
	w := batch[0]
	if len(w.events) > 1 {
		half := *w
		half.events = w.events[:len(w.events)/2]
		return s.appendAsync(ctx, []*asyncWork{&half}) // the other half comes next
	}
	s.metrics.refused.Inc()
	s.log.Warn("the store refuses an event that was acked; its channel begins a new epoch", "channel", w.ch.name, "offset", w.events[0].Offset, "error", refused)
	for _, k := range s.skip(w) { // nobody has acked it
		s.finish(k.p, result{code: codes.InvalidArgument, message: refused.Error()})
	}
	return nil
}

// skip lets an event go that cannot be written: the hole makes the next write begin
// a new epoch behind the row. It returns who waits for it.
func (s *sequencer) skip(w *asyncWork) []ack {
	ch := w.ch
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	if ch.epoch != w.epoch || len(ch.tail.events) == 0 {
		return nil
	}
	rest, _ := ch.tail.after(w.events[0].Offset, len(ch.tail.events), 0)
	s.table.clearTailLocked(ch)
	if len(rest) > 0 {
		ch.tail.first = rest[0].Offset
		ch.tail.append(rest, tailBounds{pinned: 1})
		s.table.accountLocked(ch, ch.tail.bytes)
	}
	s.releaseLocked(ch, eventSize(w.events[0]))
	s.letGoLocked(ch)
	acks := ch.async.takeAcks(w.epoch, 0, w.events[0].Offset)
	s.hand.idleLocked(ch)
	return acks
}

func (s *sequencer) releaseLocked(ch *channel, size int64) {
	if a := ch.async; !a.loose {
		size = min(size, a.bytes)
		a.bytes -= size
		s.behind.bytes.Add(-size)
	}
}

func (s *sequencer) rowUnknown(w *asyncWork) {
	w.ch.shard.mu.Lock()
	defer w.ch.shard.mu.Unlock()
	if w.ch.epoch == w.epoch {
		w.ch.async.row = point{}
	}
}

// wrote takes note that the store has events up to an offset, and acks what waited.
func (s *sequencer) wrote(w *asyncWork, upTo uint64) {
	ch := w.ch
	ch.shard.mu.Lock()
	a := ch.async
	if ch.epoch != w.epoch || !ch.known || upTo <= a.written {
		ch.shard.mu.Unlock()
		return
	}
	size := int64(0)
	done, _ := ch.tail.after(a.written, int(upTo-a.written), 0)
	for _, e := range done {
		size += eventSize(e)
	}
	s.releaseLocked(ch, size)
	a.row, a.written, a.wroteMS = point{w.epoch, upTo}, upTo, s.cfg.Now().UnixMilli()
	if a.loose && ch.head == upTo {
		a.loose = false
	}
	acks := a.takeAcks(w.epoch, 0, upTo)
	s.hand.idleLocked(ch)
	ch.shard.mu.Unlock()
	s.acked(acks, Committed)
}
