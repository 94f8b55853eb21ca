package router

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/presence"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// channels is what package api talks to: the sequencer, the table and the reads behind
// its interfaces Channels and Views.
type channels struct{ *Router }

// Publish queues a publication, or finishes it if there is no room.
func (c channels) Publish(p *machine.Publication) { c.sequencer.enqueue(p) }

// Ask answers from memory if that can be trusted, else from the store.
func (c channels) Ask(q *machine.Question) {
	c.ask(&question{
		ask: q.Ask, ns: q.Namespace, position: q.Ask.Epoch != nil, last: int(min(q.Ask.Last, machine.MaxPage)), maxBytes: q.MaxBytes,
		deadline: q.Deadline, gone: q.Gone, reply: q.Reply,
	})
}

// Lag is the age of the oldest question that waits for the store.
func (c channels) Lag() time.Duration { return c.reads.lag() }

// View is the newest snapshot with its number.
func (c channels) View() (*presence.Snapshot, uint64) {
	views := c.own.current()
	last := &views[len(views)-1]
	return last.snapshot, last.seq
}

// maxHistoryBytes bounds the data of one answer; more is then true.
const maxHistoryBytes = 1 << 20

// Page answers from memory if that is trusted and has the whole page, else from the
// store; a channel without a store only where it is.
func (c channels) Page(q *machine.PageQuery) {
	if q.Namespace.Durability == namespace.None {
		c.pageOfMemory(q)
		return
	}
	res, ok := c.pageOfTail(q)
	if ok {
		q.Reply(pageResult(res))
		return
	}
	key, _ := pageKey(q)
	c.reads.add(key, q.Namespace, waiter{deadline: q.Deadline, gone: q.Gone, answer: func(res readResult) { q.Reply(pageResult(res)) }})
}

func pageResult(res readResult) machine.PageResult {
	if res.err != nil {
		return machine.PageResult{Result: machine.Result{Code: codes.Unavailable, Message: "history cannot be read now", RetryAfter: time.Second}}
	}
	return machine.PageResult{Epoch: res.epoch, Head: res.head, First: res.floor, Events: res.events, More: res.more}
}

// pageKey is a query as a key for reads; `before 0` there means "from the newest", so
// before offset 1 needs its own word: nothing.
func pageKey(q *machine.PageQuery) (key readKey, nothing bool) {
	key = readKey{channel: q.Channel, limit: q.Limit, maxBytes: maxHistoryBytes, reverse: q.Reverse}
	switch {
	case q.Offset == nil:
	case !q.Reverse:
		key.after = *q.Offset
	case *q.Offset <= 1:
		return readKey{channel: q.Channel, head: true}, true
	default:
		key.before = *q.Offset
	}
	return key, false
}

// pageOfTail answers from memory if that is trusted and has the whole page.
func (c channels) pageOfTail(q *machine.PageQuery) (readResult, bool) {
	name := q.Channel
	shard := c.table.lock(name)
	defer shard.mu.Unlock()
	ch := shard.channels[name]
	if ch == nil || !ch.known || ch.floor == 0 || len(ch.tail.events) == 0 || !c.own.trusted(name, ch.trust, ch.settled) || time.Now().Before(ch.late) {
		return readResult{}, false
	}
	floor := ch.floor
	if size := uint64(ch.ns.HistorySize); size > 0 && ch.head > size {
		floor = max(floor, ch.head-size+1)
	}
	res := readResult{epoch: ch.epoch, head: ch.head, floor: floor}
	return res, pageFromTail(&ch.tail, q, &res)
}

// pageFromTail fills in the events; false: the tail does not have all of them.
func pageFromTail(t *tail, q *machine.PageQuery, res *readResult) bool {
	if !q.Reverse {
		after := uint64(0)
		if q.Offset != nil {
			after = *q.Offset
		}
		if after >= res.head {
			return true
		}
		if !t.covers(max(after, res.floor-1), res.head) {
			return false
		}
		res.events, res.more = t.after(max(after, res.floor-1), q.Limit, maxHistoryBytes)
		return true
	}
	end := res.head // last wanted
	if q.Offset != nil {
		end = min(end, max(*q.Offset, 1)-1)
	}
	if end < res.floor {
		return true
	}
	from := res.floor
	if end-from+1 > uint64(q.Limit) {
		from = end - uint64(q.Limit) + 1
	}
	if len(t.events) == 0 || from < t.first {
		return false
	}
	size := 0
	for offset := end; offset >= from; offset-- {
		e := t.events[offset-t.first]
		if size += len(e.Data) + len(e.Meta); size > maxHistoryBytes && offset < end {
			res.more = true
			return true
		}
		res.events = append(res.events, e)
	}
	res.more = from > res.floor
	return true
}

// pageOfMemory answers from the owner's memory, as soon as it is clear who that is.
func (c channels) pageOfMemory(q *machine.PageQuery) {
	elsewhere := machine.PageResult{Elsewhere: true}
	shard := c.table.lock(q.Channel)
	if q.Gone() || shard.channels[q.Channel] == nil && !c.own.owned(q.Channel) {
		shard.mu.Unlock()
		q.Reply(elsewhere)
		return
	}
	ch := c.table.getLocked(shard, q.Channel, q.Namespace)
	var answer machine.PageResult
	switch c.sequencer.volatileLocked(ch, 0) {
	case turnWait:
		ch.waiters = append(ch.waiters, func() { c.pageOfMemory(q) })
		shard.mu.Unlock()
		return
	case turnPass:
		answer = elsewhere
	case turnServe:
		res := readResult{epoch: ch.epoch, head: ch.head, floor: ch.head + 1}
		if len(ch.tail.events) > 0 {
			res.floor = ch.tail.first
		}
		if answer = (machine.PageResult{Result: machine.NotOwner}); pageFromTail(&ch.tail, q, &res) {
			answer = pageResult(res)
		}
	}
	shard.mu.Unlock()
	q.Reply(answer)
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
