package historytest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

// longRange asks for anything of a channel whose head is near most.
func longRange(random *rand.Rand, channel string, most int) history.Range {
	return history.Range{
		Channel: channel, After: uint64(random.IntN(most + 50)), Before: uint64(random.IntN(most + 50)),
		Reverse: random.IntN(2) == 0, Limit: 1 + random.IntN(200), MaxBytes: random.IntN(2) * random.IntN(3_000),
	}
}

// wantPage compares a page with what a channel of plain events, first..head, has
// to answer. sizes are those of the events by offset.
func wantPage(t testing.TB, p history.Page, r history.Range, first, head uint64, size func(uint64) int) {
	t.Helper()
	if p.First != first || p.Head != head {
		t.Fatalf("%+v: %d..%d, want %d..%d", r, p.First, p.Head, first, head)
	}
	want, bytes, more := []uint64{}, 0, false
	at, step, end := max(r.After+1, first), uint64(1), head+1
	if r.Reverse {
		at, step, end = head, ^uint64(0), first-1
		if r.Before != 0 {
			at = min(head, r.Before-1)
		}
	}
	for ; at != end && at >= first && at <= head; at += step {
		bytes += size(at)
		if len(want) == r.Limit || r.MaxBytes > 0 && bytes > r.MaxBytes && len(want) > 0 {
			more = true
			break
		}
		want = append(want, at)
	}
	if got := offsetsOf(p.Events); !reflect.DeepEqual(got, want) || p.More != more {
		t.Fatalf("%+v: offsets %v, more %v; want %v, %v", r, got, p.More, want, more)
	}
}

// plainSize is the size of a plain event at an offset.
func plainSize(offset uint64) int { return len(fmt.Sprintf(`{"n":%d}`, offset)) }

// manyRangesOfOneChannel asks a long channel, trimmed in several steps, for
// many ranges in one call, some of them twice.
func manyRangesOfOneChannel(t *testing.T, s history.Store) {
	random := seeded(t)
	const most = 900
	for head := 0; head < most; {
		n := min(1+random.IntN(40), most-head)
		fill(t, s, "chat:long", n)
		fill(t, s, "chat:other", 1)
		head += n
	}
	for _, left := range []int{900, 701, 640, 300, 64, 63} {
		trimTo(t, s, left)
		var ranges []history.Range
		for range 24 {
			ranges = append(ranges, longRange(random, "chat:long", most))
		}
		ranges = append(ranges, ranges[:8]...)
		for i, p := range mustRead(t, s, ranges...) {
			wantPage(t, p, ranges[i], uint64(most-left+1), most, plainSize)
		}
	}
}

// emptiedAndPublished lets retention empty a channel, by age and by size in
// turn, and then publishes on it again, around every boundary that a store may
// have inside.
func emptiedAndPublished(t *testing.T, s history.Store) {
	random := seeded(t)
	head := uint64(0)
	for round := range 14 {
		n := 1 + random.IntN(150)
		if round%5 == 4 {
			n = int(64 - head%64) // end on a round number
		}
		ages := make([]time.Duration, n)
		for i := range ages {
			ages[i] = 5 * hour
		}
		aged(t, s, "chat:a", ages...)
		head += uint64(n)
		mustTrim(t, s, 0, 10_000, history.Retention{Namespace: "chat", TTL: hour})
		wantLeft(t, s, "chat:a", head+1, head)
		for _, r := range []history.Range{{Limit: 5}, {After: head - 1, Limit: 5}, {After: head, Limit: 5}, {Reverse: true, Limit: 5}, {Reverse: true, Before: head, Limit: 5}} {
			r.Channel = "chat:a"
			wantPage(t, mustRead(t, s, r)[0], r, head+1, head, plainSize)
		}
		h := aged(t, s, "chat:a", 2*hour, 2*hour, 2*hour)
		head += 3
		wantLeft(t, s, "chat:a", head-2, head)
		if n := mustTrim(t, s, 0, 10_000, history.Retention{Namespace: "chat", Size: 2, TTL: 3 * hour}); n != 1 {
			t.Fatalf("%d went, want 1", n)
		}
		r := history.Range{Channel: "chat:a", After: 0, Limit: 10}
		wantPage(t, mustRead(t, s, r)[0], r, head-1, head, plainSize)
		if h.Offset != head {
			t.Fatalf("head %d, want %d", h.Offset, head)
		}
	}
}

// sizeThatShrinks: a rule that changes reaches channels on which nothing has been
// published since, and one that comes back too.
func sizeThatShrinks(t *testing.T, s history.Store) {
	for i := range 20 {
		fill(t, s, fmt.Sprintf("chat:%d", i), 20)
	}
	for _, size := range []int{15, 15, 4, 9, 3} {
		mustTrim(t, s, 0, 10_000, history.Retention{Namespace: "chat", Size: size})
		want := map[int]uint64{15: 6, 4: 17, 9: 17, 3: 18}[size]
		for i := range 20 {
			wantLeft(t, s, fmt.Sprintf("chat:%d", i), want, 20)
		}
	}
	// what is published between two looks is looked at, however little it is
	for i := range 20 {
		h := fill(t, s, fmt.Sprintf("chat:%d", i), 1)
		mustTrim(t, s, 0, 10_000, history.Retention{Namespace: "chat", Size: 3})
		wantLeft(t, s, h.Channel, 19, 21)
	}
}

// keysComeBack: a key that its window has forgotten is new, and counts from its
// second event; an event may go long before its key and long after it.
func keysComeBack(t *testing.T, s history.Store) {
	key := history.Key{Scope: "u:ann", Key: "k"}
	store := func(age time.Duration, n int) {
		t.Helper()
		h := mustHead(t, s, "chat:a")
		run := runAfter(h, n)
		for i := range run.Events {
			run.Events[i].TimeMS = time.Now().Add(-age).UnixMilli()
		}
		run.Events[0].Scope, run.Events[0].Key = key.Scope, key.Key
		mustStore(t, s, run)
	}
	store(3*hour, 2)
	if n := mustTrim(t, s, 4*hour, 100); n != 0 {
		t.Errorf("%d went within the window", n)
	}
	if n := mustTrim(t, s, 2*hour, 100); n != 1 {
		t.Errorf("%d went, want the key alone", n)
	}
	wantLeft(t, s, "chat:a", 1, 2)
	store(hour, 3)
	if h := mustHead(t, s, "chat:a", key); h.Repeats[key] != 3 {
		t.Fatalf("repeats %v, want the second event", h.Repeats)
	}
	// by size all but the newest event go: the key stays, and refuses
	mustTrim(t, s, 2*hour, 100, history.Retention{Namespace: "chat", Size: 1})
	wantLeft(t, s, "chat:a", 5, 5)
	if h := mustHead(t, s, "chat:a", key); h.Repeats[key] != 3 {
		t.Fatalf("repeats %v after the event went", h.Repeats)
	}
	_, err := s.Append(callContext(t), []history.Run{keyedRun(mustHead(t, s, "chat:a"), key.Scope, key.Key)})
	wantRefused(t, err)
	if n := mustTrim(t, s, 30*time.Minute, 100); n != 1 {
		t.Errorf("%d went, want the key", n)
	}
	mustStore(t, s, keyedRun(mustHead(t, s, "chat:a"), key.Scope, key.Key))
}

// twoTrimmers: two routers that both believe that retention is theirs, while
// events come through both.
func twoTrimmers(t *testing.T, open Open) {
	stores := []history.Store{opened(t, open), opened(t, open)}
	const channels, rounds, size = 12, 25, 4
	var gone atomic.Int64
	var group errgroup.Group
	for i, s := range stores {
		// Publishes on channels of its own and trims all; ends after its rounds;
		// waited for below.
		group.Go(func() error {
			for range rounds {
				var queries []history.HeadQuery
				for n := range channels {
					queries = append(queries, history.HeadQuery{Channel: fmt.Sprintf("chat:%d-%d", i, n)})
				}
				heads, err := s.Heads(callContext(t), queries)
				if err != nil {
					return err
				}
				var runs []history.Run
				for n, h := range heads {
					runs = append(runs, runAfter(h, 1+n%3))
				}
				if _, err := s.Append(callContext(t), runs); err != nil {
					return err
				}
				n, err := s.Trim(callContext(t), []history.Retention{{Namespace: "chat", Size: size}}, 0, 50)
				if err != nil {
					return err
				}
				gone.Add(int64(n))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		for n := 1; n > 0; {
			n = mustTrim(t, s, 0, 50, history.Retention{Namespace: "chat", Size: size})
			gone.Add(int64(n))
		}
	}
	total := int64(0)
	for i := range stores {
		for n := range channels {
			head := uint64(rounds * (1 + n%3))
			wantLeft(t, stores[1-i], fmt.Sprintf("chat:%d-%d", i, n), head-size+1, head)
			total += int64(head) - size
		}
	}
	if gone.Load() != total {
		t.Errorf("%d are said to have gone, %d have", gone.Load(), total)
	}
}
