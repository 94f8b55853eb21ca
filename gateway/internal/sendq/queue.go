// Package sendq is the bounded send queue of one conn: frames that wait for room
// in a socket.
//
// Package gateway pushes frames and flushes once a turn; the queue writes to a
// poller.Conn, or anything whose Write does not block.
//
// Life: a Queue belongs to one conn, a Pool to one loop, and both to the loop's
// goroutine; there are no locks. Frames are WebSocket frames, ready to be sent,
// perhaps shared by thousands of queues: they are never changed, and copied only
// into the flush buffer.
//
// Invariants, asserted after every call in builds with -race:
//
//	0 <= sent < len(first frame); bytes = sum of the frames - sent
//	bytes <= MaxBytes after PushEvent, <= MaxBytes + ReserveBytes after Push,
//	  unless the queue was empty before; items likewise
//
// Overflow: an event that does not fit is refused, and the owner calls DropEvents
// and lets the conn catch up from history. Replies, gaps and closes have a reserve
// of their own and are never dropped; a conn that uses it up is to be closed.
//
// Limits: an empty queue is 40 B and holds nothing. Left out: what to do with a
// slow consumer, priorities, timeouts.
package sendq

import "github.com/spillway-io/spillway/proto/schema"

// Limits bound one queue.
type Limits struct {
	MaxBytes int `rule:"between 1 and 1,073,741,824"`                 // of frames; more refuses events
	MaxItems int `default:"4,096" rule:"between 1 and 1,073,741,824"` // frames; more refuses events
	// What Push may use on top, when events fill the queue.
	ReserveBytes int `default:"64 KiB" rule:"between 1 and 1,073,741,824"`
	ReserveItems int `default:"256" rule:"between 1 and 1,073,741,824"`
}

// DefaultLimits allow so many bytes of events, and 64 KiB of replies on top.
func DefaultLimits(maxBytes int) Limits {
	l := schema.Default[Limits]()
	l.MaxBytes = maxBytes
	return l
}

// Validate reports every bad field at once.
func (l Limits) Validate() error { return schema.Validate(&l) }

// Tag says whose event a frame is: the owner's words, never looked at here.
type Tag struct {
	Owner  uint64 // a subscription
	Offset uint64
}

// Queue holds the frames of one conn, oldest first. The zero value is of no use;
// see Pool.Queue.
type Queue struct {
	pool       *Pool
	head, tail *item  // nil: empty
	bytes      uint32 // not yet written
	sent       uint32 // of head's frame
	items      uint32
	events     uint32 // items that DropEvents may drop
}

// item is one frame in a queue; 64 B.
type item struct {
	frame []byte
	tag   Tag
	next  *item
	event bool
}

// Len returns how many frames wait, the one partly written included.
func (q *Queue) Len() int { return int(q.items) }

// Bytes returns how many bytes wait.
func (q *Queue) Bytes() int { return int(q.bytes) }

// Events returns how many of the frames DropEvents could drop, the one partly
// written included.
func (q *Queue) Events() int { return int(q.events) }

// Push queues a frame that is never dropped: a reply, a gap, a close. It reports
// false, and queues nothing, when the reserve is used up too: the client reads
// nothing and asks on, so close it. Frame is kept until written and must not change.
// An empty frame is nothing to write.
func (q *Queue) Push(frame []byte) bool {
	l := &q.pool.limits
	return q.push(frame, Tag{}, false, l.MaxBytes+l.ReserveBytes, l.MaxItems+l.ReserveItems)
}

// PushEvent queues an event. It reports false, and queues nothing, when the queue
// is full; the owner then calls DropEvents. An event of any size fits an empty
// queue, or it could never be sent.
func (q *Queue) PushEvent(frame []byte, tag Tag) bool {
	l := &q.pool.limits
	return q.push(frame, tag, true, l.MaxBytes, l.MaxItems)
}

func (q *Queue) push(frame []byte, tag Tag, event bool, maxBytes, maxItems int) bool {
	if len(frame) == 0 {
		return true
	}
	if q.items > 0 && (int(q.bytes)+len(frame) > maxBytes || int(q.items) >= maxItems) {
		return false
	}
	it := q.pool.get()
	it.frame, it.tag, it.event = frame, tag, event
	if q.tail == nil {
		q.head = it
	} else {
		q.tail.next = it
	}
	q.tail = it
	q.items++
	q.bytes += uint32(len(frame))
	if event {
		q.events++
	}
	q.check()
	return true
}

// DropEvents takes out every queued event, tells drop the tag of each, oldest
// first, and returns how many there were. It leaves an event that is partly
// written: the client has begun to read it. drop must not touch the queue; nil
// tells nobody.
func (q *Queue) DropEvents(drop func(Tag)) int {
	dropped := 0
	var last *item
	for it := q.head; it != nil; {
		next := it.next
		if !it.event || it == q.head && q.sent > 0 {
			last, it = it, next
			continue
		}
		if last == nil {
			q.head = next
		} else {
			last.next = next
		}
		q.items--
		q.events--
		q.bytes -= uint32(len(it.frame))
		dropped++
		tag := it.tag
		q.pool.put(it)
		if drop != nil {
			drop(tag)
		}
		it = next
	}
	q.tail = last
	q.check()
	return dropped
}

// Clear empties the queue of a conn that is closed.
func (q *Queue) Clear() {
	for q.head != nil {
		q.pop()
	}
	q.bytes, q.sent = 0, 0
	q.check()
}

// pop takes the first item out; the caller corrects bytes and sent.
func (q *Queue) pop() {
	it := q.head
	q.head = it.next
	if q.head == nil {
		q.tail = nil
	}
	q.items--
	if it.event {
		q.events--
	}
	q.pool.put(it)
}
