package router

import (
	"context"
	"slices"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
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
	answer := q.fromTailLocked(ch)
	s.mu.Unlock()
	if answer == nil {
		r.reads.add(q.rangeKey(), q.ns, q.waiter(func(res readResult) { r.asyncRangeRead(q, res) }))
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

// asyncRangeRead joins what the store has with the tail that goes on from it.
func (r *Router) asyncRangeRead(q *question, res readResult) {
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

// asyncHistory answers from the owner's memory as far as that has the page's first
// event, else from the store; the page after it goes on with the other.
func (s historyService) asyncHistory(ctx context.Context, request *routerv1.ReadHistoryRequest, ns *Namespace, limit int) (*routerv1.ReadHistoryResponse, error) {
	if s.awaitTurn(ctx, request.Channel, ns) != turnServe {
		return s.forwardHistory(ctx, request)
	}
	res, has, err := s.asyncPage(ctx, request, ns, limit)
	if err != nil || has {
		return respond(request, res, err)
	}
	stored, err := s.historyFromStore(ctx, request, ns, limit)
	if err != nil {
		return nil, err
	}
	head := res.head
	res.floor, res.events, res.more = min(stored.floor, head+1), stored.events, stored.more
	if n := len(res.events); n > 0 && !request.Reverse {
		res.more = res.events[n-1].Offset < head
	}
	return historyResponse(request, res)
}

func respond(request *routerv1.ReadHistoryRequest, res readResult, err error) (*routerv1.ReadHistoryResponse, error) {
	if err != nil {
		return nil, err
	}
	return historyResponse(request, res)
}

// asyncPage is the part of the page that memory has; false: not its first event.
func (s historyService) asyncPage(ctx context.Context, request *routerv1.ReadHistoryRequest, ns *Namespace, limit int) (readResult, bool, error) {
	var row *history.Head
	if !s.asyncKnown(request.Channel) && !s.sequencer.behind.storeAway() {
		if head, err := s.readOne(ctx, readKey{channel: request.Channel, head: true}, ns); err == nil {
			row = head.row()
		}
	}
	shard := s.table.lock(request.Channel)
	defer shard.mu.Unlock()
	ch := s.table.getLocked(shard, request.Channel, ns)
	if s.sequencer.asyncLocked(ch, row, 0) != turnServe {
		return readResult{}, false, statusOf(notOwner)
	}
	first := ch.head + 1
	if len(ch.tail.events) > 0 {
		first = ch.tail.first
	}
	res := readResult{epoch: ch.epoch, head: ch.head, floor: 1}
	if ch.head == 0 {
		return res, true, nil
	}
	if !request.Reverse {
		after := request.GetOffset()
		if after+1 < first {
			return res, false, nil
		}
		res.events, res.more = ch.tail.after(after, limit, maxHistoryBytes)
		return res, true, nil
	}
	if request.Offset != nil && *request.Offset <= first {
		return res, false, nil
	}
	inTail := res
	inTail.floor = first
	if ok := pageFromTail(&ch.tail, request, limit, &inTail); !ok || len(inTail.events) == 0 {
		return res, false, nil
	}
	res.events = inTail.events
	res.more = inTail.more || first > 1
	return res, true, nil
}

func (s historyService) asyncKnown(channel string) bool {
	shard := s.table.lock(channel)
	defer shard.mu.Unlock()
	ch := shard.channels[channel]
	return ch != nil && (s.sequencer.asyncReadyLocked(ch) || ch.unwrittenLocked() > 0)
}
