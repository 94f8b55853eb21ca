package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

const (
	// Edges whose view is behind ask the old owner of a channel: for a moment it tells
	// them to ask again, since the new one knows without the store.
	movedFor   = time.Second
	movedRetry = 50 * time.Millisecond
)

// question is an Ask that has been looked at.
type question struct {
	ask      *gatewayv1.Ask
	ns       *namespace.Namespace
	position bool
	last     int
	maxBytes int
	deadline time.Time
	gone     func() bool
	reply    func(*gatewayv1.Answer)
}

// ask answers one question of an edge: from memory if that can be trusted, else
// from the store.
func (r *Router) ask(q *question) {
	if q.ns.Durability == namespace.None {
		r.askVolatile(q)
		return
	}
	r.askCommitted(q)
}

func (r *Router) askVolatile(q *question) {
	s := r.table.lock(q.ask.Channel)
	var answer *gatewayv1.Answer
	if ch := r.ownChannelLocked(s, q); ch != nil {
		switch r.sequencer.volatileLocked(ch, claim(q.ask.SeenEpoch, 0).epoch) {
		case turnWait:
			ch.waiters = append(ch.waiters, r.retry(q, r.askVolatile))
			s.mu.Unlock()
			return
		case turnServe:
			if answer = q.fromTailLocked(ch); answer == nil {
				answer = q.answer(ch.epoch, ch.head, ch.baseLocked(ch.epoch, ch.head)) // older than the tail: gone
				switch {
				case q.last > 0:
					q.newest(answer, ch.tail.newest(q.last, q.maxBytes))
				case len(ch.tail.events) > 0:
					answer.From = ch.tail.first - 1
				}
			}
		}
	}
	s.mu.Unlock()
	if answer == nil {
		r.moving(q)
		return
	}
	r.metrics.asks.tail.Inc()
	q.reply(answer)
	r.table.shrink()
}

// moving tells the edge to ask again soon: another router is about to own the channel.
func (r *Router) moving(q *question) {
	r.metrics.asks.unavailable.Inc()
	q.reply(q.unavailable(machine.MovingRetry, "the channel is moving to another router"))
}

// ownChannelLocked is a channel that is here, or ours by the view; else nil. Its shard
// is locked.
func (r *Router) ownChannelLocked(s *shard, q *question) *channel {
	if s.channels[q.ask.Channel] == nil && !r.own.owned(q.ask.Channel) {
		return nil
	}
	ch := r.table.getLocked(s, q.ask.Channel, q.ns)
	r.keeper.usedLocked(ch)
	return ch
}

// retry asks anew when a channel has been handed to us, or nobody has it.
func (r *Router) retry(q *question, ask func(*question)) func() {
	return func() {
		switch {
		case q.gone():
			q.reply(q.unavailable(0, "nobody waits"))
		case !time.Now().Before(q.deadline):
			r.metrics.asks.unavailable.Inc()
			q.reply(q.unavailable(100*time.Millisecond, "the channel is moving to another router"))
		default:
			ask(q)
		}
	}
}

// askCommitted answers from memory, or reads: only the head if the tail would
// then do, else the range.
func (r *Router) askCommitted(q *question) {
	name := q.ask.Channel
	s := r.table.lock(name)
	var answer *gatewayv1.Answer
	trusted, moved := false, false
	if ch := r.ownChannelLocked(s, q); ch != nil {
		switch r.hand.turnLocked(ch) {
		case turnWait:
			ch.waiters = append(ch.waiters, r.retry(q, r.askCommitted))
			s.mu.Unlock()
			return
		case turnPass:
			moved = ch.tenure.gaveWithin(time.Now(), movedFor)
		}
		if ch.known {
			answer = q.fromTailLocked(ch)
			trusted = answer != nil && !q.belowSeen(ch.epoch, ch.head) && r.hand.trustedLocked(ch)
		}
	}
	s.mu.Unlock()
	switch {
	case moved:
		r.metrics.asks.unavailable.Inc()
		q.reply(q.unavailable(movedRetry, "the channel is moving to another router"))
	case trusted:
		r.metrics.asks.tail.Inc()
		q.reply(answer)
	case answer != nil || q.headOnly():
		r.reads.add(readKey{channel: name, head: true}, q.ns, q.waiter(func(res readResult) { r.headRead(q, res) }))
	default:
		r.reads.add(q.rangeKey(), q.ns, q.waiter(func(res readResult) { r.rangeRead(q, res) }))
	}
}

func (q *question) waiter(answer func(readResult)) waiter {
	return waiter{deadline: q.deadline, seen: claim(q.ask.SeenEpoch, q.ask.SeenOffset), gone: q.gone, answer: answer}
}

// headOnly says that no event can be part of the answer.
func (q *question) headOnly() bool { return !q.ns.Recover || !q.position && q.last == 0 }

func (q *question) rangeKey() readKey {
	if q.last > 0 {
		return readKey{channel: q.ask.Channel, reverse: true, limit: q.last, maxBytes: q.maxBytes}
	}
	return readKey{channel: q.ask.Channel, after: q.ask.Offset, limit: machine.MaxPage, maxBytes: q.maxBytes}
}

// belowSeen says that the edge knows of something newer than (epoch, head).
func (q *question) belowSeen(epoch, head uint64) bool {
	above := func(e, o uint64) bool { return e > epoch || e == epoch && o > head }
	return above(q.ask.SeenEpoch, q.ask.SeenOffset) || q.position && above(*q.ask.Epoch, q.ask.Offset)
}

// headRead goes on after the head was read: with the tail if it still ends there.
func (r *Router) headRead(q *question, res readResult) {
	if res.err != nil {
		r.unread(q, res.err)
		return
	}
	name := q.ask.Channel
	var answer *gatewayv1.Answer
	s := r.table.lock(name)
	if ch := s.channels[name]; ch != nil && ch.known && ch.epoch == res.epoch && ch.head >= res.head {
		answer = q.fromTailLocked(ch)
	}
	s.mu.Unlock()
	switch {
	case answer != nil:
	case q.headOnly():
		answer = q.verdict(res)
	default:
		r.reads.add(q.rangeKey(), q.ns, q.waiter(func(res readResult) { r.rangeRead(q, res) }))
		return
	}
	r.metrics.asks.store.Inc()
	q.reply(answer)
}

func (r *Router) rangeRead(q *question, res readResult) {
	if res.err != nil {
		r.unread(q, res.err)
		return
	}
	r.metrics.asks.store.Inc()
	q.reply(q.verdict(res))
}

// unread tells the edge to ask again, spread: nothing is lost.
func (r *Router) unread(q *question, err error) {
	r.metrics.asks.unavailable.Inc()
	message := "the store does not answer"
	if errors.Is(err, errTooManyReads) || errors.Is(err, context.Canceled) {
		message = "the router is busy or leaving"
	}
	q.reply(q.unavailable(100*time.Millisecond+rand.N(r.cfg.API.RetrySpread), message))
}

func (q *question) unavailable(after time.Duration, message string) *gatewayv1.Answer {
	return &gatewayv1.Answer{
		Id: q.ask.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, HasHistory: q.ns.Recover,
		RetryAfterMs: uint32(after.Milliseconds()), Message: message,
	}
}

func (q *question) answer(epoch, head, base uint64) *gatewayv1.Answer {
	return &gatewayv1.Answer{Id: q.ask.Id, Status: gatewayv1.Status_STATUS_OK, Epoch: epoch, Head: head, Base: base, HasHistory: q.ns.Recover}
}

// fromTailLocked answers from what is in memory, whether or not it can be
// trusted; nil: memory does not have the events.
func (q *question) fromTailLocked(ch *channel) *gatewayv1.Answer {
	a := q.answer(ch.epoch, ch.head, ch.baseLocked(ch.epoch, ch.head))
	switch {
	case q.last > 0 && q.ns.Recover:
		floor := ch.tail.first
		if len(ch.tail.events) < q.last && (len(ch.tail.events) == 0 && ch.head > 0 || floor > 1 && (ch.floor == 0 || floor > ch.floor)) {
			return nil
		}
		q.newest(a, ch.tail.newest(q.last, q.maxBytes))
	case !q.position:
	case *q.ask.Epoch != ch.epoch || q.ask.Offset > ch.head:
		// Another run of the channel, or ahead of it: never recovered.
	case q.ask.Offset == ch.head:
		a.Recovered = true
	case !q.ns.Recover:
	case !ch.tail.covers(q.ask.Offset, ch.head):
		return nil
	default:
		a.Recovered = true
		a.Events, a.More = ch.tail.after(q.ask.Offset, machine.MaxPage, q.maxBytes)
	}
	return a
}

// newest fills in the answer to `last`.
func (q *question) newest(a *gatewayv1.Answer, events []*gatewayv1.BusEvent) {
	a.Events, a.From = events, a.Head
	if len(events) > 0 {
		a.From = events[0].Offset - 1
	}
}

// verdict answers from what the store said. A position is recovered only in its
// own epoch, with nothing missing between it and the head.
func (q *question) verdict(res readResult) *gatewayv1.Answer {
	a := q.answer(res.epoch, res.head, res.base)
	switch {
	case q.last > 0 && q.ns.Recover:
		events := slices.Clone(res.events)
		slices.Reverse(events)
		q.newest(a, events)
	case !q.position || *q.ask.Epoch != res.epoch || q.ask.Offset > res.head:
	case q.ask.Offset == res.head:
		a.Recovered = true
	case q.ns.Recover && q.ask.Offset+1 >= res.floor:
		a.Recovered, a.Events, a.More = true, res.events, res.more
	case q.ns.Recover:
		a.From = res.floor - 1
	}
	return a
}
