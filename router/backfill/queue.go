package backfill

import (
	"container/heap"
	"time"

	"github.com/spillway-io/spillway/router/channel"
)

// expiredMost bounds what one take lets go of, so that the lock is not held for a whole
// queue whose time has run out.
const expiredMost = 4096

// flight is what is read once for all who ask for the same.
type flight struct {
	key     channel.ReadKey
	since   time.Time // of the first question
	place   uint64    // in the order of arrival
	queries []*channel.ReadQuery
}

// wanted says that somebody will still wait when a batch that begins now has ended, or
// has half of its time left: no work is done for who has left.
func (f *flight) wanted(now time.Time, takes time.Duration) bool {
	for _, q := range f.queries {
		if left := q.Deadline.Sub(now); left > 0 && left >= min(takes, q.Deadline.Sub(f.since)/2) && !q.Gone() {
			return true
		}
	}
	return false
}

// last is the newest question: what it knew of the channel is nearest to what was read.
func (f *flight) last() *channel.ReadQuery { return f.queries[len(f.queries)-1] }

func (f *flight) deadline() time.Time {
	var last time.Time
	for _, q := range f.queries {
		if q.Deadline.After(last) {
			last = q.Deadline
		}
	}
	return last
}

// seen is the highest position that the edges of a flight have seen.
func (f *flight) seen() channel.Position {
	var most channel.Position
	for _, q := range f.queries {
		most = most.Max(q.Seen)
	}
	return most
}

// shown is the highest position that the store had shown when the questions came.
func (f *flight) shown() channel.Position {
	var most channel.Position
	for _, q := range f.queries {
		most = most.Max(q.Mark.Shown)
	}
	return most
}

// queue is the flights that wait, in order of arrival. One whose key is in the store
// is set aside, and has its old place again when the key is back. Each step costs the
// same whether a hundred flights wait or 200,000: a storm would else make each batch walk
// over all that it leaves.
//
// It is pure: times are passed in, and it is owned by whoever guards it.
//
//	fresh and again = flights whose key is not in running; ready() <= len(flights) <= waiting
type queue struct {
	flights map[channel.ReadKey]*flight
	running map[channel.ReadKey]time.Time // keys in the store; since when their oldest question waits
	fresh   []*flight                     // never set aside, in order
	again   flightHeap                    // were set aside
	arrived uint64                        // flights so far
	waiting int                           // questions of all flights
}

func newQueue() queue {
	return queue{flights: make(map[channel.ReadKey]*flight), running: make(map[channel.ReadKey]time.Time)}
}

// add joins the flight of a key or begins one; grown: one more is ready.
func (q *queue) add(query *channel.ReadQuery, now time.Time) (grown bool) {
	key := query.Key
	f := q.flights[key]
	if f == nil {
		q.arrived++
		f = &flight{key: key, since: now, place: q.arrived}
		q.flights[key] = f
		if _, runs := q.running[key]; !runs {
			q.fresh = append(q.fresh, f)
			grown = true
		}
	}
	f.queries = append(f.queries, query)
	q.waiting++
	return grown
}

// first is the oldest flight that is ready; nil: none.
func (q *queue) first() *flight {
	switch {
	case len(q.fresh) == 0 && len(q.again) == 0:
		return nil
	case len(q.fresh) == 0 || len(q.again) > 0 && q.again[0].place < q.fresh[0].place:
		return q.again[0]
	}
	return q.fresh[0]
}

// ready is how many flights may begin.
func (q *queue) ready() int { return len(q.fresh) + len(q.again) }

// pop takes out the first.
func (q *queue) pop(f *flight) {
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
	q.waiting -= len(f.queries)
}

// take takes flights that are ready, in order: up to so many, whose answers may have so many
// bytes together, but one. A flight that has less time left than a batch takes is not
// begun (wanted): its query would be given up halfway, and in a queue that is always
// in order the next one too. A store that cannot keep up would so answer nobody at all.
func (q *queue) take(now time.Time, takes time.Duration, most, mostBytes int) (batch, expired []*flight) {
	bytes := 0
	for f := q.first(); f != nil && len(batch) < most && len(expired) < expiredMost; f = q.first() {
		wanted := f.wanted(now, takes)
		if wanted && len(batch) > 0 && bytes+f.key.MaxBytes > mostBytes {
			break
		}
		q.pop(f)
		if !wanted {
			expired = append(expired, f)
			continue
		}
		q.running[f.key] = f.since
		bytes += f.key.MaxBytes
		batch = append(batch, f)
	}
	return batch, expired
}

// back says that a key is not in the store any more.
func (q *queue) back(key channel.ReadKey) {
	delete(q.running, key)
	if f := q.flights[key]; f != nil {
		heap.Push(&q.again, f)
	}
}

// lag is how long the oldest question has waited, here or in the store. What is set
// aside came after what is in the store.
func (q *queue) lag(now time.Time) time.Duration {
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
