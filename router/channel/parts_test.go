package channel

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// A tail has no holes and ends at the head, whatever is let go of it, and answers as the
// list of all events would.
func TestTailIsTheEndOfAllEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*gatewayv1.BusEvent
		first := rapid.Uint64Range(1, 100).Draw(t, "first")
		tail := tail{first: first}
		for range rapid.IntRange(1, 20).Draw(t, "runs") {
			var run []*gatewayv1.BusEvent
			for range rapid.IntRange(1, 5).Draw(t, "events") {
				data := make([]byte, rapid.IntRange(0, 300).Draw(t, "bytes"))
				run = append(run, &gatewayv1.BusEvent{Offset: first + uint64(len(all)), TimeMs: uint64(len(all)), Data: data})
				all = append(all, run[len(run)-1])
			}
			keep := tailBounds{
				before: rapid.Uint64Range(0, 30).Draw(t, "before"), events: rapid.IntRange(0, 10).Draw(t, "keep"),
				bytes: rapid.Int64Range(0, 3000).Draw(t, "bound"),
			}
			tail.append(run, keep)
			checkTail(t, &tail, all, first)
			if keep.bytes > 0 && tail.bytes > keep.bytes {
				t.Fatalf("%d bytes, the bound is %d", tail.bytes, keep.bytes)
			}
			if n := len(tail.events); keep.bytes == 0 && n < min(keep.events, len(all)) && n < len(run) {
				t.Fatalf("%d of the newest %d are here", n, keep.events)
			}
		}
	})
}

func checkTail(t *rapid.T, tail *tail, all []*gatewayv1.BusEvent, first uint64) {
	head, bytes := first+uint64(len(all))-1, int64(0)
	for i, e := range tail.events {
		bytes += EventSize(e)
		if e.Offset != tail.first+uint64(i) {
			t.Fatalf("event %d of a tail from %d has offset %d", i, tail.first, e.Offset)
		}
	}
	if bytes != tail.bytes || tail.first+uint64(len(tail.events)) != head+1 {
		t.Fatalf("%d bytes counted as %d; %d events from %d, head %d", bytes, tail.bytes, len(tail.events), tail.first, head)
	}
	offset := rapid.Uint64Range(first-1, head).Draw(t, "offset")
	limit, most := rapid.IntRange(1, 10).Draw(t, "limit"), rapid.IntRange(0, 500).Draw(t, "most")
	if tail.covers(offset, head) {
		want, more := cut(all[offset+1-first:], limit, most)
		if got, gotMore := tail.after(offset, limit, most); !slices.Equal(got, want) || gotMore != more {
			t.Fatalf("after %d: %v %v, want %v %v", offset, got, gotMore, want, more)
		}
	} else if offset+1 >= tail.first && len(tail.events) > 0 {
		t.Fatalf("a tail from %d does not cover what is after %d", tail.first, offset)
	}
	if got := tail.newest(limit, most); len(got) > 0 && (got[len(got)-1].Offset != head || len(got) > limit) {
		t.Fatalf("newest %d: %v", limit, got)
	}
}

func TestCutLeavesAtLeastOneEvent(t *testing.T) {
	events := []*gatewayv1.BusEvent{{Data: make([]byte, 10)}, {Data: make([]byte, 10)}, {Data: make([]byte, 10)}}
	for _, c := range []struct {
		limit, bytes, n int
		more            bool
	}{{1000, 0, 3, false}, {2, 0, 2, true}, {1000, 20, 2, true}, {1000, 5, 1, true}, {1000, 30, 3, false}} {
		if got, more := cut(events, c.limit, c.bytes); len(got) != c.n || more != c.more {
			t.Errorf("limit %d, %d bytes: %d events, more %v; want %d, %v", c.limit, c.bytes, len(got), more, c.n, c.more)
		}
	}
}

// The newest keys are known, older ones are not, and what they cost is counted.
func TestRecentKeysAreTheNewest(t *testing.T) {
	var none *recentKeys
	if _, ok := none.offset(history.Key{}); ok || none.size() != 0 {
		t.Error("no keys know something")
	}
	k := newRecentKeys()
	key := func(i int) history.Key { return history.Key{Scope: "b", Key: fmt.Sprintf("%04d", i)} }
	for i := range recentKeysMax + 10 {
		k.put(key(i), uint64(i))
	}
	for i := range recentKeysMax + 10 {
		if offset, ok := k.offset(key(i)); ok != (i >= 10) || ok && offset != uint64(i) {
			t.Errorf("key %d: %d %v", i, offset, ok)
		}
	}
	if want := int64(recentKeysMax) * recentKeySize(key(0)); k.size() != want {
		t.Errorf("they cost %d, counted as %d", want, k.size())
	}
}

func TestPositionsAreOrdered(t *testing.T) {
	order := []Position{{}, {1, 0}, {1, 5}, {2, 0}, {2, 1}, {history.MaxEpoch, 1}}
	for i, p := range order {
		for j, q := range order {
			if p.Above(q) != (i > j) || p.Max(q) != order[max(i, j)] {
				t.Errorf("%v and %v: above %v, max %v", p, q, p.Above(q), p.Max(q))
			}
		}
	}
	if claim(maxClaim, 3) != (Position{maxClaim, 3}) || claim(maxClaim+1, 3) != (Position{}) {
		t.Error("the bound of what edges may claim")
	}
}
