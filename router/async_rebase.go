package router

import (
	"context"
	"fmt"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// renewRows begins epochs in the store. The row of a channel whose epoch is new is
// given it if it ends where the channel went on from. Else (it was not known, or
// somebody wrote, or what was written is gone, or what was not is) the channel begins
// one epoch more, behind the row; what is unwritten goes along.
func (s *sequencer) renewRows(ctx context.Context, batch []*asyncWork) error {
	var renewals []history.Renewal
	var of []*asyncWork
	for _, w := range batch {
		if len(w.events) == 0 && !w.hole && !w.doubt || w.row == (point{w.epoch, w.written}) && !w.hole {
			continue
		}
		fresh := w.epoch
		if w.row.epoch >= w.epoch || w.row.offset != w.written || w.hole {
			if !s.owns(w.ch) {
				s.deposed(w) // the owner alone begins epochs
				continue
			}
			fresh = s.nextEpoch(max(w.epoch, w.row.epoch))
		}
		renewals = append(renewals, history.Renewal{Channel: w.ch.name, Epoch: w.row.epoch, Head: w.row.offset, New: fresh})
		of = append(of, w)
	}
	if len(renewals) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StoreTimeout)
	defer cancel()
	s.metrics.storeCalls.renew.Inc()
	rows, err := s.store.Renew(ctx, renewals)
	if err != nil {
		return fmt.Errorf("begin epochs: %w", err)
	}
	for i, w := range of {
		r := &renewals[i]
		if rows[i].Epoch != r.New || rows[i].Offset != r.Head {
			s.rowUnknown(w) // somebody was faster: read again
			w.row, w.events = point{}, nil
			continue
		}
		w.row = point{r.New, r.Head}
		if r.New != w.epoch {
			s.rebase(w)
		}
	}
	return nil
}

// owns says that a channel is ours, by the view or by a hand that is newer.
func (s *sequencer) owns(ch *channel) bool {
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	v := s.own.look(ch.name, ch.known, &ch.tenure, time.Now())
	return ch.tenure.owner(&v) == v.self
}

// rebase goes on behind the row, in its epoch: what is unwritten is numbered anew.
// Those who are live have had it; the epoch tells everybody that something may be
// missing.
func (s *sequencer) rebase(w *asyncWork) {
	ch := w.ch
	ch.shard.mu.Lock()
	if ch.epoch != w.epoch || !ch.known {
		ch.shard.mu.Unlock()
		w.events = nil
		return
	}
	s.metrics.renewals.rebase.Inc()
	a, old := ch.async, ch.epoch
	events := renumbered(&ch.tail, a.written, w.row.offset)
	shift := w.row.offset + uint64(len(events)) - ch.head // of offsets, modulo 2^64
	if w.row.offset < a.written && !s.forgotten(a, w.row) {
		s.metrics.asyncLost.Add(float64(a.written - w.row.offset)) // the store had it
	}
	kept := ch.head - uint64(len(events))
	ch.rekeyLocked(a.written, kept, w.row.offset, shift)
	s.table.countKeysLocked(ch)
	var lost []ack
	if kept > a.written {
		lost = a.takeAcks(old, 0, kept)
	}
	for i := range a.acks {
		if r := &a.acks[i].res; r.epoch == old {
			r.epoch, r.offset = w.row.epoch, r.offset+shift
		}
	}
	if a.unsure > kept {
		a.unsure += shift
	} else {
		a.unsure = 0
	}
	s.table.moveLocked(ch, w.row.epoch, w.row.offset)
	a.row, a.written, a.gone = w.row, w.row.offset, w.row.offset
	if len(events) > 0 {
		s.table.grewLocked(ch, events, tailBounds{pinned: 1})
	}
	ch.base = point{ch.epoch, ch.head}
	s.fan.publishedLocked(ch) // tells the new head soon
	ch.shard.mu.Unlock()
	w.events = nil // they come next, in the new epoch
	for _, k := range lost {
		s.finish(k.p, unknownOutcome)
	}
}

// forgotten says that retention took the channel's row: nothing was lost.
func (s *sequencer) forgotten(a *asyncState, row point) bool {
	return row.offset == 0 && a.wroteMS > 0 && s.cfg.ForgetAfter > 0 && s.cfg.Now().UnixMilli()-a.wroteMS >= s.cfg.ForgetAfter.Milliseconds()
}

// renumbered copies the events behind written so that they follow head: they are
// shared with answers under their old offsets.
func renumbered(t *tail, written, head uint64) []*gatewayv1.BusEvent {
	old, _ := t.after(max(written, t.first-min(t.first, 1)), len(t.events), 0)
	for i, e := range old {
		old[i] = &gatewayv1.BusEvent{
			Offset: head + 1 + uint64(i), TimeMs: e.TimeMs, Data: e.Data, Binary: e.Binary, From: e.From, Meta: e.Meta,
		}
	}
	return old
}

// rekeyLocked moves the offsets of keys whose events (those behind kept) were numbered
// anew, and forgets those whose events the store has lost or never got.
func (ch *channel) rekeyLocked(written, kept, head, shift uint64) {
	if ch.keys == nil {
		return
	}
	left := ch.keys.order[:0]
	for _, key := range ch.keys.order {
		offset := ch.keys.offsets[key]
		switch {
		case offset > kept:
			ch.keys.offsets[key] = offset + shift
		case offset > min(written, head):
			ch.keys.forget(key)
			continue
		}
		left = append(left, key)
	}
	ch.keys.order = left
}

// deposed gives up what another owner's epoch has left no place for: it is counted,
// and the epoch tells those who may have missed it.
func (s *sequencer) deposed(w *asyncWork) {
	ch := w.ch
	ch.shard.mu.Lock()
	if ch.epoch != w.epoch || !ch.known {
		ch.shard.mu.Unlock()
		return
	}
	a := ch.async
	s.metrics.asyncLost.Add(float64(ch.unlostLocked()))
	s.behind.bytes.Add(-a.bytes)
	acks := a.acks
	*a = asyncState{queued: true}
	s.table.forgetLocked(ch)
	ch.keys = nil
	s.table.countKeysLocked(ch)
	ch.shard.mu.Unlock()
	w.events = nil
	for _, k := range acks {
		s.finish(k.p, unknownOutcome)
	}
}
