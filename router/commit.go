package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

// maxRaces is how often a publication may lose the race for its channel.
const maxRaces = 10

// commit brings one batch to the store: load what is not known, look up keys,
// number, append, then tail, bus and answers. The error says that the store
// failed and the committer had better wait; everything is accounted for.
func (s *sequencer) commit(ctx context.Context, batch []*work) error {
	// A batch that has begun is finished: only the store's own deadline ends it.
	ctx = context.WithoutCancel(ctx)
	began := time.Now()
	if err := s.prepare(ctx, batch); err != nil {
		s.metrics.failures.Inc()
		for _, w := range batch {
			s.retryLater(w, w.pubs, false)
		}
		return err
	}
	err := s.append(ctx, pieces(batch))
	s.metrics.commitSeconds.Observe(time.Since(began).Seconds())
	return err
}

// prepare loads heads and keys for the channels that need it, settles suspects
// and repeats. On an error nothing has changed but beliefs.
func (s *sequencer) prepare(ctx context.Context, batch []*work) error {
	queries, asked := headQueries(batch)
	if len(queries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	t := s.own.now()
	s.metrics.storeCalls.heads.Inc()
	shown := shownOf(asked)
	heads, err := s.store.Heads(ctx, queries)
	if err != nil {
		return fmt.Errorf("load heads: %w", err)
	}
	if err := s.renewer.check(ctx, queries, heads, shown); err != nil {
		return err
	}
	for i, w := range asked {
		s.load(w, &heads[i], t)
	}
	if err := s.settleSuspects(ctx, asked); err != nil {
		return err
	}
	for i, w := range asked {
		s.settleKeys(w, heads[i].Repeats)
	}
	return nil
}

func headQueries(batch []*work) (queries []history.HeadQuery, asked []*work) {
	for _, w := range batch {
		q := history.HeadQuery{Channel: w.ch.name}
		seen := make(map[history.Key]bool)
		for _, p := range w.pubs {
			if k := p.Key(); k.Key != "" && !seen[k] {
				seen[k] = true
				q.Keys = append(q.Keys, k)
			}
		}
		w.keyed = len(q.Keys) > 0
		if w.must || w.keyed {
			queries, asked = append(queries, q), append(asked, w)
		}
	}
	return queries, asked
}

// shownOf is what the store is known to have had, before it is read.
func shownOf(batch []*work) []point {
	shown := make([]point, len(batch))
	for i, w := range batch {
		w.ch.shard.mu.Lock()
		shown[i] = w.ch.shown
		w.ch.shard.mu.Unlock()
	}
	return shown
}

func (s *sequencer) load(w *work, h *history.Head, t trust) {
	ch := w.ch
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	s.table.loadedLocked(ch, h.Epoch, h.Offset, w.version, t)
	w.epoch, w.head = h.Epoch, h.Offset
	if ch.known {
		w.epoch, w.head = ch.epoch, ch.head
	}
	// A read that saw more came between: keys were not looked up there.
	w.lost = w.keyed && (w.epoch != h.Epoch || w.head != h.Offset)
}

// loadedLocked takes the position that a read found. version is the channel's
// from before the read: if it has moved since, only a larger position is newer.
func (t *table) loadedLocked(ch *channel, epoch, head, version uint64, at trust) {
	same := ch.known && epoch == ch.epoch && head == ch.head
	if ch.shown.above(point{epoch, head}) || version != ch.version && !ch.known {
		return
	}
	if !same {
		t.moveLocked(ch, epoch, head)
	}
	ch.trust = at
}

// settleKeys answers repeats: of events in the store with their offsets, within
// the batch together with the first one.
func (s *sequencer) settleKeys(w *work, stored map[history.Key]uint64) {
	var first map[history.Key]*machine.Publication
	kept := w.pubs[:0]
	for _, p := range w.pubs {
		k := p.Key()
		if k.Key == "" {
			kept = append(kept, p)
			continue
		}
		if offset, ok := stored[k]; ok {
			s.metrics.repeats.Inc()
			s.finish(p, machine.Result{Epoch: w.epoch, Offset: offset, Repeat: true})
			continue
		}
		if first == nil {
			first = make(map[history.Key]*machine.Publication)
		}
		if f := first[k]; f != nil {
			f.Repeats = append(f.Repeats, p)
			continue
		}
		first[k] = p
		kept = append(kept, p)
	}
	w.pubs = kept
}

// piece is some publications of a work, as one run.
type piece struct {
	*work
	pubs []*machine.Publication
}

func pieces(batch []*work) []piece {
	all := make([]piece, 0, len(batch))
	for _, w := range batch {
		all = append(all, piece{w, w.pubs})
	}
	return all
}

// append stores pieces, halving them while the store refuses their content.
func (s *sequencer) append(ctx context.Context, all []piece) error {
	all, runs := s.number(all)
	if len(runs) == 0 {
		return nil
	}
	timeout, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	t := s.own.now()
	s.metrics.storeCalls.append.Inc()
	outcomes, err := s.store.Append(timeout, runs)
	var refused *history.RefusedError
	switch {
	case err == nil:
		s.settle(all, runs, outcomes, t)
		return nil
	case errors.As(err, &refused):
		return s.halve(ctx, all, refused)
	}
	s.metrics.unknown.Inc()
	for i := range all {
		s.outcomeUnknown(&all[i], &runs[i])
	}
	return fmt.Errorf("append: %w", err)
}

// number gives offsets from what is believed; pieces without one go back.
func (s *sequencer) number(all []piece) ([]piece, []history.Run) {
	now := s.cfg.Now().UnixMilli()
	runs := make([]history.Run, 0, len(all))
	kept := all[:0:0]
	for _, p := range all {
		switch {
		case len(p.pubs) == 0:
			continue
		case p.lost:
			s.raceLost(p.work, p.pubs)
			continue
		case p.head > wire.MaxOffset-uint64(len(p.pubs)):
			s.finishAll(p.pubs, machine.Result{Code: codes.FailedPrecondition, Message: "the channel has no offsets left"})
			continue
		}
		run := history.Run{Channel: p.ch.name, Epoch: p.epoch, Head: p.head, Events: make([]history.Event, len(p.pubs))}
		for i, pub := range p.pubs {
			pub.Event.Offset, pub.Event.TimeMS = p.head+1+uint64(i), now
			run.Events[i] = pub.Event
		}
		runs, kept = append(runs, run), append(kept, p)
	}
	return kept, runs
}

func (s *sequencer) finishAll(pubs []*machine.Publication, res machine.Result) {
	for _, p := range pubs {
		s.finish(p, res)
		res := res
		res.Repeat = res.Code == codes.OK
		for _, again := range p.Repeats {
			s.finish(again, res)
		}
		p.Repeats = nil
	}
}

func (s *sequencer) settle(all []piece, runs []history.Run, outcomes []history.Outcome, t trust) {
	for i, p := range all {
		if outcomes[i] != history.Stored {
			s.lose(p.work)
			s.raceLost(p.work, p.pubs)
			continue
		}
		s.stored(p.work, &runs[i], t)
		for j, pub := range p.pubs {
			s.finishAll(p.pubs[j:j+1], machine.Result{Epoch: p.epoch, Offset: pub.Event.Offset})
		}
	}
	s.metrics.batchEvents.Observe(float64(countEvents(runs)))
}

func countEvents(runs []history.Run) int {
	n := 0
	for i := range runs {
		n += len(runs[i].Events)
	}
	return n
}

// stored makes a committed run visible: tail and head, then the bus.
func (s *sequencer) stored(w *work, run *history.Run, t trust) {
	events := busEvents(run.Events)
	ch := w.ch
	ch.shard.mu.Lock()
	if ch.known && ch.epoch == run.Epoch && ch.head == run.Head {
		s.table.grewLocked(ch, events, s.bounds())
	} else {
		// A read saw the run before this did, or the channel was forgotten.
		if !ch.known || ch.epoch < run.Epoch || ch.epoch == run.Epoch && ch.head < run.NewHead() {
			s.table.moveLocked(ch, run.Epoch, run.NewHead())
		}
		s.table.refillLocked(ch, events)
	}
	ch.trust = t
	ch.suspects, ch.late = nil, time.Time{} // the row has moved past their heads
	s.fan.publishedLocked(ch)
	base := ch.baseLocked(run.Epoch, run.Head)
	ch.shard.mu.Unlock()
	w.head, w.epoch = run.NewHead(), run.Epoch
	s.fan.out(ch.name, run.Epoch, base, events)
}

func (s *sequencer) bounds() tailBounds { return s.cfg.tailBounds(s.cfg.Now()) }

func busEvents(events []history.Event) []*gatewayv1.BusEvent {
	var slab eventSlab
	out := make([]*gatewayv1.BusEvent, len(events))
	for i := range events {
		out[i] = slab.next(len(events) - i)
		fillEvent(out[i], &events[i])
	}
	return out
}

// slabEvents is how many events share an allocation. As long as one of them is in a
// tail, the others are in memory too, with all that they carry, and not counted.
const slabEvents = 16

// eventSlab hands out the events of a run.
type eventSlab []gatewayv1.BusEvent

// next is one more of at most so many.
func (s *eventSlab) next(left int) *gatewayv1.BusEvent {
	if len(*s) == 0 {
		*s = make([]gatewayv1.BusEvent, min(left, slabEvents))
	}
	e := &(*s)[0]
	*s = (*s)[1:]
	return e
}

func fillEvent(b *gatewayv1.BusEvent, e *history.Event) {
	b.Offset, b.TimeMs, b.Data, b.Binary, b.From, b.Meta = e.Offset, uint64(max(0, e.TimeMS)), e.Data, e.Binary, e.From, e.Meta
}

// lose forgets a channel whose row was not what was believed.
func (s *sequencer) lose(w *work) {
	s.metrics.races.Inc()
	w.lost = true
	w.ch.shard.mu.Lock()
	s.table.forgetLocked(w.ch)
	w.ch.shard.mu.Unlock()
}

func (s *sequencer) raceLost(w *work, pubs []*machine.Publication) {
	for _, p := range expand(pubs) {
		if p.Races++; p.Races > maxRaces {
			s.finish(p, machine.Result{Code: codes.Unavailable, RetryAfter: time.Second, Message: "not stored: other routers write to this channel"})
			continue
		}
		w.back = append(w.back, p)
	}
}

// expand puts repeats back behind the publication that they waited for.
func expand(pubs []*machine.Publication) []*machine.Publication {
	all := make([]*machine.Publication, 0, len(pubs))
	for _, p := range pubs {
		all = append(all, p)
		all = append(all, p.Repeats...)
		p.Repeats = nil
	}
	return all
}

// halve finds the event that the store does not take: it fails alone.
func (s *sequencer) halve(ctx context.Context, all []piece, refused *history.RefusedError) error {
	total := 0
	for _, p := range all {
		total += len(p.pubs)
	}
	if total == 1 {
		s.metrics.refused.Inc()
		s.finishAll(all[0].pubs, machine.Result{Code: codes.InvalidArgument, Message: refused.Error()})
		return nil
	}
	left, right := split(all, total/2)
	if err := s.append(ctx, left); err != nil {
		for _, p := range right {
			s.retryLater(p.work, p.pubs, false)
		}
		return err
	}
	return s.append(ctx, right)
}

// split cuts pieces after n events; the one that is cut is in both halves.
func split(all []piece, n int) (left, right []piece) {
	for _, p := range all {
		k := min(n, len(p.pubs))
		n -= k
		if k > 0 {
			left = append(left, piece{p.work, p.pubs[:k]})
		}
		if k < len(p.pubs) {
			right = append(right, piece{p.work, p.pubs[k:]})
		}
	}
	return left, right
}
