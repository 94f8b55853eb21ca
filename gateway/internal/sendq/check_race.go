//go:build race

package sendq

import "fmt"

// check walks the queue: a wrong count would starve or overflow a conn much later.
func (q *Queue) check() {
	var bytes, items, events int
	var last *item
	for it := q.head; it != nil; it = it.next {
		bytes += len(it.frame)
		items++
		if it.event {
			events++
		}
		last = it
	}
	l := q.pool.limits
	switch {
	case bytes-int(q.sent) != int(q.bytes), items != int(q.items), events != int(q.events), last != q.tail,
		q.head == nil && q.sent != 0, q.head != nil && int(q.sent) >= len(q.head.frame),
		items > 1 && bytes-len(q.head.frame) > l.MaxBytes+l.ReserveBytes, items > l.MaxItems+l.ReserveItems:
		panic(fmt.Sprintf("sendq: accounting: %+v, counted %d bytes, %d items, %d events", *q, bytes, items, events))
	}
}
