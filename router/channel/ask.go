package channel

import (
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// MaxPage is the most events of one answer.
const MaxPage = 1000

const (
	// Edges whose view is behind ask the old owner of a channel: for a moment it tells
	// them to ask again, since the new one knows without the store.
	movedFor   = time.Second
	movedRetry = 50 * time.Millisecond
)

const isMoving = "the channel is moving to another router"

// Question is an ask of an edge that may be answered.
type Question struct {
	Ask       *gatewayv1.Ask
	Namespace *namespace.Namespace
	MaxBytes  int       // most data of the answer
	Deadline  time.Time // nobody waits for the answer after it
	Gone      func() bool
	Looked    func()                  // called once, when the answer was given or has to be waited for
	Reply     func(*gatewayv1.Answer) // called once, from any goroutine; must not block
}

// last is how many of the newest events are asked for.
func (q *Question) last() int { return int(min(q.Ask.Last, MaxPage)) }

// position says that the question is about what came after a position.
func (q *Question) position() bool { return q.Ask.Epoch != nil }

// Ask answers a question from memory if that can be trusted, else from the store.
func (c *Channel) Ask(s *Step, q *Question) {
	if !c.foreign {
		c.use(s)
	}
	q.ask(c, s)
	q.Looked()
}

func (q *Question) ask(c *Channel, s *Step) {
	switch {
	case q.Gone():
		q.Reply(q.unavailable(0, "nobody waits"))
		return
	case !s.Now.Before(q.Deadline):
		q.away(s, 100*time.Millisecond, isMoving)
		return
	}
	turn := c.turn(s)
	switch {
	case turn == Wait:
		c.waiting = append(c.waiting, q)
	case c.rules.numberedBy == byMemory && turn == Serve:
		c.begin(s, claim(q.Ask.SeenEpoch, 0).Epoch)
		s.Out.Count(AsksFromTail, 1)
		q.Reply(q.fromMemory(c))
	case c.rules.numberedBy == byMemory:
		q.away(s, MovingRetry, isMoving)
	case turn == Pass && c.own.state == ownGiven && s.Now.Sub(c.own.gone) < movedFor:
		q.away(s, movedRetry, isMoving)
	default:
		q.look(c, s)
	}
}

// look answers about a channel with a store: from memory, or from the store. Only the
// head is read if the tail would then do, else the range.
func (q *Question) look(c *Channel, s *Step) {
	var answer *gatewayv1.Answer
	if c.known {
		answer = q.fromTail(c)
	}
	seen := claim(q.Ask.SeenEpoch, q.Ask.SeenOffset)
	switch {
	case answer != nil && !q.belowSeen(c.epoch, c.head) && c.trusted(s):
		s.Out.Count(AsksFromTail, 1)
		q.Reply(answer)
	case answer != nil || q.headOnly():
		c.query(s, ReadKey{Channel: c.name, Head: true}, seen, q.Deadline, q.Gone, (*headQuestion)(q))
	default:
		c.query(s, q.pages(), seen, q.Deadline, q.Gone, (*pageQuestion)(q))
	}
}

// headQuestion is a Question that waits for the head of its channel.
type headQuestion Question

// read goes on after the head was read: with the tail if it still ends there.
func (h *headQuestion) read(c *Channel, s *Step, res *ReadResult) {
	q := (*Question)(h)
	var answer *gatewayv1.Answer
	switch {
	case res.Err != ReadDone:
		q.unread(s, res.Err)
		return
	case c.known && c.epoch == res.Epoch && c.head >= res.Head:
		answer = q.fromTail(c)
	}
	switch {
	case answer != nil:
	case q.headOnly():
		answer = q.verdict(res)
	default:
		c.query(s, q.pages(), claim(q.Ask.SeenEpoch, q.Ask.SeenOffset), q.Deadline, q.Gone, (*pageQuestion)(q))
		return
	}
	s.Out.Count(AsksFromStore, 1)
	q.Reply(answer)
}

// pageQuestion is a Question that waits for events of its channel.
type pageQuestion Question

func (p *pageQuestion) read(_ *Channel, s *Step, res *ReadResult) {
	q := (*Question)(p)
	if res.Err != ReadDone {
		q.unread(s, res.Err)
		return
	}
	s.Out.Count(AsksFromStore, 1)
	q.Reply(q.verdict(res))
}

// headOnly says that no event can be part of the answer.
func (q *Question) headOnly() bool { return !q.Namespace.Recover || !q.position() && q.last() == 0 }

func (q *Question) pages() ReadKey {
	if n := q.last(); n > 0 {
		return ReadKey{Channel: q.Ask.Channel, Reverse: true, Limit: n, MaxBytes: q.MaxBytes}
	}
	return ReadKey{Channel: q.Ask.Channel, After: q.Ask.Offset, Limit: MaxPage, MaxBytes: q.MaxBytes}
}

// belowSeen says that the edge knows of something newer than (epoch, head).
func (q *Question) belowSeen(epoch, head uint64) bool {
	at := Position{epoch, head}
	return Position{q.Ask.SeenEpoch, q.Ask.SeenOffset}.Above(at) || q.position() && Position{*q.Ask.Epoch, q.Ask.Offset}.Above(at)
}

// unread tells the edge to ask again, spread: nothing is lost.
func (q *Question) unread(s *Step, err ReadError) {
	message := "the store does not answer"
	if err == ReadBusy {
		message = "the router is busy or leaving"
	}
	q.away(s, 100*time.Millisecond+s.Out.Jitter(s.Config.RetrySpread), message)
}

// away counts and tells the edge to ask again.
func (q *Question) away(s *Step, after time.Duration, message string) {
	s.Out.Count(AsksUnavailable, 1)
	q.Reply(q.unavailable(after, message))
}

func (q *Question) unavailable(after time.Duration, message string) *gatewayv1.Answer {
	return &gatewayv1.Answer{
		Id: q.Ask.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, HasHistory: q.Namespace.Recover,
		RetryAfterMs: uint32(after.Milliseconds()), Message: message,
	}
}

func (q *Question) answer(epoch, head, base uint64) *gatewayv1.Answer {
	return &gatewayv1.Answer{Id: q.Ask.Id, Status: gatewayv1.Status_STATUS_OK, Epoch: epoch, Head: head, Base: base, HasHistory: q.Namespace.Recover}
}

// fromMemory answers from the one place where a channel without a store is.
func (q *Question) fromMemory(c *Channel) *gatewayv1.Answer {
	if a := q.fromTail(c); a != nil {
		return a
	}
	a := q.answer(c.epoch, c.head, c.baseAt(c.epoch, c.head)) // older than the tail: gone
	switch {
	case q.last() > 0:
		q.newest(a, c.tail.newest(q.last(), q.MaxBytes))
	case len(c.tail.events) > 0:
		a.From = c.tail.first - 1
	}
	return a
}

// fromTail answers from what is in memory, whether or not it can be trusted; nil: memory
// does not have the events.
func (q *Question) fromTail(c *Channel) *gatewayv1.Answer {
	a := q.answer(c.epoch, c.head, c.baseAt(c.epoch, c.head))
	last := q.last()
	switch {
	case last > 0 && q.Namespace.Recover:
		floor := c.tail.first
		if len(c.tail.events) < last && (len(c.tail.events) == 0 && c.head > 0 || floor > 1 && (c.floor == 0 || floor > c.floor)) {
			return nil
		}
		q.newest(a, c.tail.newest(last, q.MaxBytes))
	case !q.position():
	case *q.Ask.Epoch != c.epoch || q.Ask.Offset > c.head:
		// Another run of the channel, or ahead of it: never recovered.
	case q.Ask.Offset == c.head:
		a.Recovered = true
	case !q.Namespace.Recover:
	case !c.tail.covers(q.Ask.Offset, c.head):
		return nil
	default:
		a.Recovered = true
		a.Events, a.More = c.tail.after(q.Ask.Offset, MaxPage, q.MaxBytes)
	}
	return a
}

// newest fills in the answer to `last`.
func (q *Question) newest(a *gatewayv1.Answer, events []*gatewayv1.BusEvent) {
	a.Events, a.From = events, a.Head
	if len(events) > 0 {
		a.From = events[0].Offset - 1
	}
}

// verdict answers from what the store said. A position is recovered only in its
// own epoch, with nothing missing between it and the head.
func (q *Question) verdict(res *ReadResult) *gatewayv1.Answer {
	a := q.answer(res.Epoch, res.Head, res.base)
	switch {
	case q.last() > 0 && q.Namespace.Recover:
		events := slices.Clone(res.Events)
		slices.Reverse(events)
		q.newest(a, events)
	case !q.position() || *q.Ask.Epoch != res.Epoch || q.Ask.Offset > res.Head:
	case q.Ask.Offset == res.Head:
		a.Recovered = true
	case q.Namespace.Recover && q.Ask.Offset+1 >= res.Floor:
		a.Recovered, a.Events, a.More = true, res.Events, res.More
	case q.Namespace.Recover:
		a.From = res.Floor - 1
	}
	return a
}
