package backfill

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/router/channel"
)

// walkedQueue is the naive twin of queue: one list in order of arrival, walked whole for
// each batch.
type walkedQueue struct {
	order   []*flight
	running map[channel.ReadKey]bool
}

func (q *walkedQueue) add(w *channel.ReadQuery, now time.Time) {
	key := w.Key
	for _, f := range q.order {
		if f.key == key {
			f.queries = append(f.queries, w)
			return
		}
	}
	q.order = append(q.order, &flight{key: key, since: now, queries: []*channel.ReadQuery{w}})
}

func (q *walkedQueue) take(now time.Time, takes time.Duration, most, mostBytes int) (batch, expired []*flight) {
	bytes, full := 0, false
	var kept []*flight
	for _, f := range q.order {
		full = full || len(batch) == most
		switch wanted := f.wanted(now, takes); {
		case q.running[f.key] || full:
			kept = append(kept, f)
		case !wanted:
			expired = append(expired, f)
		case len(batch) > 0 && bytes+f.key.MaxBytes > mostBytes:
			full = true
			kept = append(kept, f)
		default:
			bytes += f.key.MaxBytes
			batch = append(batch, f)
		}
	}
	for _, f := range batch {
		q.running[f.key] = true
	}
	q.order = kept
	return batch, expired
}

func named(flights []*flight) []string {
	var all []string
	for _, f := range flights {
		all = append(all, fmt.Sprint(f.key.Channel, " ", len(f.queries)))
	}
	return all
}

// Whatever comes, leaves and is read, flights go in the order in which they came, never
// two of a key at once, and none is lost.
func TestReadsGoInTheOrderTheyCame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		fast, slow := newQueue(), &walkedQueue{running: make(map[channel.ReadKey]bool)}
		var running []channel.ReadKey
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				i := rapid.IntRange(0, 11).Draw(t, "channel")
				key := channel.ReadKey{Channel: fmt.Sprint(i), MaxBytes: i % 4}
				left := rapid.Bool().Draw(t, "left")
				w := &channel.ReadQuery{
					Key: key, Deadline: now.Add(time.Duration(rapid.IntRange(1, 5).Draw(t, "seconds")) * time.Second),
					Gone: func() bool { return left },
				}
				fast.add(w, now)
				slow.add(w, now)
			},
			"time passes": func(*rapid.T) { now = now.Add(700 * time.Millisecond) },
			"begin": func(t *rapid.T) {
				most, bytes := rapid.IntRange(1, 4).Draw(t, "most"), rapid.IntRange(0, 6).Draw(t, "bytes")
				batch, expired := fast.take(now, time.Second, most, bytes)
				want, gone := slow.take(now, time.Second, most, bytes)
				if got, want := named(batch), named(want); !slices.Equal(got, want) {
					t.Fatalf("begun %v, in order it is %v", got, want)
				}
				if got, want := named(expired), named(gone); !slices.Equal(got, want) {
					t.Fatalf("let go %v, in order it is %v", got, want)
				}
				for _, f := range batch {
					running = append(running, f.key)
				}
			},
			"end": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				fast.back(running[i])
				delete(slow.running, running[i])
				running = slices.Delete(running, i, i+1)
			},
			"": func(t *rapid.T) {
				waiting, ready := 0, 0
				for _, f := range slow.order {
					waiting += len(f.queries)
					if !slow.running[f.key] {
						ready++
					}
				}
				if fast.waiting != waiting || len(fast.flights) != len(slow.order) || fast.ready() != ready || len(fast.running) != len(running) {
					t.Fatalf("%d wait in %d flights, %d ready, %d in the store; in order it is %d, %d, %d, %d",
						fast.waiting, len(fast.flights), fast.ready(), len(fast.running), waiting, len(slow.order), ready, len(running))
				}
			},
		})
	})
}

// storm is a queue with so many questions for as many channels.
func storm(n int, now time.Time, add func(*channel.ReadQuery)) {
	for i := range n {
		key := channel.ReadKey{Channel: fmt.Sprint("chat:", i), MaxBytes: 1}
		add(&channel.ReadQuery{Key: key, Deadline: now.Add(time.Hour), Gone: func() bool { return false }})
	}
}

// A batch of a long queue does not walk over all that it leaves: thousands of questions in small
// batches cost a fraction of what a walk for each costs in the same minute.
func TestALongQueueIsNotWalkedForEachBatch(t *testing.T) {
	const n, batch = 3_000, 10
	now := time.Unix(1_700_000_000, 0)
	queue, walk := time.Duration(1<<62), time.Duration(1<<62)
	for range 3 { // the best of them: the machine is busy
		q := newQueue()
		storm(n, now, func(w *channel.ReadQuery) { q.add(w, now) })
		queue = min(queue, drained(func() bool {
			batch, _ := q.take(now, 0, batch, 1<<30)
			for _, f := range batch {
				q.back(f.key)
			}
			return q.ready() > 0
		}))
		slow := walked(n, now)
		walk = min(walk, drained(func() bool {
			batch, _ := slow.take(now, 0, batch, 1<<30)
			for _, f := range batch {
				delete(slow.running, f.key)
			}
			return len(slow.order) > 0
		}))
	}
	t.Logf("%v by queue, %v by walks", queue, walk)
	if walk < 3*queue {
		t.Errorf("%d questions took %v; walking over all for each batch takes %v", n, queue, walk)
	}
}

func drained(take func() (more bool)) time.Duration {
	began := time.Now()
	for take() {
	}
	return time.Since(began)
}

// walked is a storm in a walkedQueue.
func walked(n int, now time.Time) *walkedQueue {
	q := &walkedQueue{running: make(map[channel.ReadKey]bool)}
	storm(n, now, func(w *channel.ReadQuery) {
		q.order = append(q.order, &flight{key: w.Key, since: now, queries: []*channel.ReadQuery{w}})
	})
	return q
}

// BenchmarkQueue takes all questions of a storm in batches of 500, with the walk over all that
// wait beside it.
func BenchmarkQueue(b *testing.B) {
	now := time.Unix(1_700_000_000, 0)
	report := func(b *testing.B, n int) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/question")
	}
	for _, n := range []int{2_000, 20_000, 200_000} {
		b.Run(fmt.Sprint("queue/", n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				q := newQueue()
				storm(n, now, func(w *channel.ReadQuery) { q.add(w, now) })
				b.StartTimer()
				for q.ready() > 0 {
					batch, _ := q.take(now, 0, 500, 1<<30)
					for _, f := range batch {
						q.back(f.key)
					}
				}
			}
			report(b, n)
		})
		b.Run(fmt.Sprint("walk/", n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				q := walked(n, now)
				b.StartTimer()
				for len(q.order) > 0 {
					batch, _ := q.take(now, 0, 500, 1<<30)
					for _, f := range batch {
						delete(q.running, f.key)
					}
				}
			}
			report(b, n)
		})
	}
}
