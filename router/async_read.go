package router

import (
	"slices"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// askAsync answers from the owner's memory. The store is read for what is older
// than the tail, and for where a channel goes on that is not known here.
func (r *Router) askAsync(q *question) {
	s := r.table.lock(q.ask.Channel)
	ch := r.ownChannelLocked(s, q)
	if ch == nil || !r.turnAsyncLocked(ch, q, r.hand.turnLocked(ch)) {
		s.mu.Unlock()
		if ch == nil {
			r.moving(q)
		}
		return
	}
	if !r.sequencer.asyncReadyLocked(ch) && ch.unwrittenLocked() == 0 && !r.sequencer.behind.storeAway() {
		s.mu.Unlock()
		r.reads.add(readKey{channel: q.ask.Channel, head: true}, q.ns, q.waiter(func(res readResult) { r.asyncFromMemory(q, res.row()) }))
		return
	}
	s.mu.Unlock()
	r.asyncFromMemory(q, nil)
}

// turnAsyncLocked goes on with a question if it is our turn; false: it waits, or is
// answered soon.
func (r *Router) turnAsyncLocked(ch *channel, q *question, t turn) bool {
	switch t {
	case turnWait:
		ch.waiters = append(ch.waiters, r.retry(q, r.askAsync))
	case turnPass:
		r.moving(q)
	}
	return t == turnServe
}

// row is what the store said, nil if it did not.
func (res *readResult) row() *history.Head {
	if res.err != nil {
		return nil
	}
	return &history.Head{Epoch: res.epoch, Offset: res.head}
}

func (r *Router) asyncFromMemory(q *question, row *history.Head) {
	s := r.table.lock(q.ask.Channel)
	ch := r.table.getLocked(s, q.ask.Channel, q.ns)
	if !r.turnAsyncLocked(ch, q, r.sequencer.asyncLocked(ch, row, claim(q.ask.SeenEpoch, 0).epoch)) {
		s.mu.Unlock()
		return
	}
	answer, known := q.fromTailLocked(ch), ch.storedLocked()
	s.mu.Unlock()
	if answer == nil {
		r.reads.add(q.rangeKey(), q.ns, q.waiter(func(res readResult) { r.asyncRangeRead(q, res, known) }))
		return
	}
	r.metrics.asks.tail.Inc()
	q.reply(answer)
	r.table.shrink()
}

func (r *Router) moving(q *question) {
	r.metrics.asks.unavailable.Inc()
	q.reply(q.unavailable(movingRetry, "the channel is moving to another router"))
}

// asyncRangeRead joins what the store has with the tail that goes on from it. known is
// what it had before.
func (r *Router) asyncRangeRead(q *question, res readResult, known point) {
	if res.err != nil {
		r.unread(q, res.err)
		return
	}
	s := r.table.lock(q.ask.Channel)
	ch := s.channels[q.ask.Channel]
	if ch == nil || !r.sequencer.asyncReadyLocked(ch) {
		s.mu.Unlock()
		r.moving(q)
		return
	}
	r.sequencer.doubtLocked(ch, known, point{res.epoch, res.head})
	a := q.answer(ch.epoch, ch.head, ch.baseLocked(ch.epoch, ch.head))
	if q.last > 0 {
		var events []*gatewayv1.BusEvent
		if res.epoch == ch.epoch {
			events = slices.Clone(res.events)
			slices.Reverse(events)
		}
		// The store may be behind the tail, or have what is in it.
		first := ch.head + 1
		if len(ch.tail.events) > 0 {
			first = ch.tail.first
		}
		for len(events) > 0 && events[len(events)-1].Offset >= first {
			events = events[:len(events)-1]
		}
		newest := ch.tail.newest(q.last, q.maxBytes)
		if n := q.last - len(newest); len(newest) == len(ch.tail.events) && len(events) > 0 && events[len(events)-1].Offset+1 == first {
			newest = append(events[max(0, len(events)-n):], newest...)
		}
		q.newest(a, newest)
	} else if *q.ask.Epoch == ch.epoch && q.ask.Offset <= ch.head {
		switch stored := res.epoch == ch.epoch; {
		case stored && q.ask.Offset+1 >= res.floor && len(res.events) > 0:
			a.Recovered, a.Events = true, res.events
			a.More = res.events[len(res.events)-1].Offset < ch.head
		case stored && q.ask.Offset+1 < res.floor:
			a.From = res.floor - 1
		case stored && res.head < ch.async.written: // read before it was written
			s.mu.Unlock()
			r.moving(q)
			return
		case len(ch.tail.events) > 0 && ch.tail.first > q.ask.Offset:
			a.From = ch.tail.first - 1 // what is between the store and the tail is lost
		}
	}
	s.mu.Unlock()
	r.metrics.asks.store.Inc()
	q.reply(a)
}
