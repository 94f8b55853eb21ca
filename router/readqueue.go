package router

import (
	"container/heap"
	"time"

	"github.com/spillway-io/spillway/router/namespace"
)

// expiredMost bounds what one take lets go of, so that the lock is not held for a whole
// queue whose time has run out.
const expiredMost = 4096

// readQueue is the flights that wait, in order of arrival. One whose key is in the store
// is set aside, and has its old place again when the key is back. Each step costs the
// same whether a hundred flights wait or 200,000: a storm would else make each batch walk
// over all that it leaves.
//
// It is pure: times are passed in, and it is owned by whoever guards it.
//
//	fresh and again = flights whose key is not in running; ready() <= len(flights) <= waiting
type readQueue struct {
	flights map[readKey]*flight
	running map[readKey]time.Time // keys in the store; since when their oldest waiter waits
	fresh   []*flight             // never set aside, in order
	again   flightHeap            // were set aside
	arrived uint64                // flights so far
	waiting int                   // waiters of all flights
}

func newReadQueue() readQueue {
	return readQueue{flights: make(map[readKey]*flight), running: make(map[readKey]time.Time)}
}

// add joins the flight of a key or begins one; grown: one more is ready.
func (q *readQueue) add(key readKey, ns *namespace.Namespace, w waiter, now time.Time) (grown bool) {
	f := q.flights[key]
	if f == nil {
		q.arrived++
		f = &flight{key: key, ns: ns, since: now, place: q.arrived}
		q.flights[key] = f
		if _, runs := q.running[key]; !runs {
			q.fresh = append(q.fresh, f)
			grown = true
		}
	}
	f.waiters = append(f.waiters, w)
	q.waiting++
	return grown
}

// first is the oldest flight that is ready; nil: none.
func (q *readQueue) first() *flight {
	switch {
	case len(q.fresh) == 0 && len(q.again) == 0:
		return nil
	case len(q.fresh) == 0 || len(q.again) > 0 && q.again[0].place < q.fresh[0].place:
		return q.again[0]
	}
	return q.fresh[0]
}

// ready is how many flights may begin.
func (q *readQueue) ready() int { return len(q.fresh) + len(q.again) }

// pop takes out the first.
func (q *readQueue) pop(f *flight) {
	if len(q.again) > 0 && q.again[0] == f {
		heap.Pop(&q.again)
	} else {
		q.fresh[0] = nil
		q.fresh = q.fresh[1:]
	}
	if len(q.fresh) == 0 {
		q.fresh = nil // a storm is over
	}
	delete(q.flights, f.key)
	q.waiting -= len(f.waiters)
}

// take takes flights that are ready, in order: up to so many, whose answers may have so many
// bytes together, but one. A flight that has less time left than a batch takes is not
// begun (wanted): its query would be given up halfway, and in a queue that is always
// in order the next one too. A store that cannot keep up would so answer nobody at all.
func (q *readQueue) take(now time.Time, takes time.Duration, most, mostBytes int) (batch, expired []*flight) {
	bytes := 0
	for f := q.first(); f != nil && len(batch) < most && len(expired) < expiredMost; f = q.first() {
		wanted := f.wanted(now, takes)
		if wanted && len(batch) > 0 && bytes+f.key.maxBytes > mostBytes {
			break
		}
		q.pop(f)
		if !wanted {
			expired = append(expired, f)
			continue
		}
		q.running[f.key] = f.since
		bytes += f.key.maxBytes
		batch = append(batch, f)
	}
	return batch, expired
}

// back says that a key is not in the store any more.
func (q *readQueue) back(key readKey) {
	delete(q.running, key)
	if f := q.flights[key]; f != nil {
		heap.Push(&q.again, f)
	}
}

// lag is how long the oldest question has waited, here or in the store. What is set
// aside came after what is in the store.
func (q *readQueue) lag(now time.Time) time.Duration {
	oldest := now
	if f := q.first(); f != nil && f.since.Before(oldest) {
		oldest = f.since
	}
	for _, since := range q.running {
		if since.Before(oldest) {
			oldest = since
		}
	}
	return now.Sub(oldest)
}

// flightHeap has the flight that came first at 0.
type flightHeap []*flight

func (h flightHeap) Len() int           { return len(h) }
func (h flightHeap) Less(i, j int) bool { return h[i].place < h[j].place }
func (h flightHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *flightHeap) Push(f any)        { *h = append(*h, f.(*flight)) }

func (h *flightHeap) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return f
}
