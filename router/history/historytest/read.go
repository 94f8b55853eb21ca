package historytest

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

func offsetsOf(events []history.Event) []uint64 {
	offsets := []uint64{}
	for _, e := range events {
		offsets = append(offsets, e.Offset)
	}
	return offsets
}

// span is from, from+step, ... to.
func span(from, to uint64) []uint64 {
	offsets := []uint64{}
	for at := from; at != to; {
		offsets = append(offsets, at)
		if from < to {
			at++
		} else {
			at--
		}
	}
	return append(offsets, to)
}

// trimTo leaves the newest n events of every channel of namespace chat.
func trimTo(t testing.TB, s history.Store, n int) {
	t.Helper()
	if _, err := s.Trim(callContext(t), []history.Retention{{Namespace: "chat", Size: n}}, 0, 1_000_000); err != nil {
		t.Fatalf("trim: %v", err)
	}
}

func positionsMayBeAnything(t *testing.T, s history.Store) {
	fill(t, s, "chat:a", 20)
	trimTo(t, s, 10) // 11..20 are left
	for _, c := range []struct {
		r    history.Range
		want []uint64
		more bool
	}{
		{history.Range{After: 0, Limit: 100}, span(11, 20), false},
		{history.Range{After: 3, Limit: 4}, span(11, 14), true},
		{history.Range{After: 10, Limit: 10}, span(11, 20), false},
		{history.Range{After: 15, Limit: 4}, span(16, 19), true},
		{history.Range{After: 15, Limit: 5}, span(16, 20), false},
		{history.Range{After: 19, Limit: 5}, span(20, 20), false},
		{history.Range{After: 20, Limit: 5}, nil, false},
		{history.Range{After: 21, Limit: 5}, nil, false},
		{history.Range{After: 1<<53 - 1, Limit: 5}, nil, false},
		{history.Range{After: 1 << 63, Limit: 5}, nil, false},
		{history.Range{After: math.MaxUint64, Limit: 5}, nil, false},
		{history.Range{After: 11, Limit: math.MaxInt32}, span(12, 20), false},
		{history.Range{Reverse: true, Limit: 3}, span(20, 18), true},
		{history.Range{Reverse: true, Before: 1, Limit: 3}, nil, false},
		{history.Range{Reverse: true, Before: 5, Limit: 3}, nil, false},
		{history.Range{Reverse: true, Before: 11, Limit: 3}, nil, false},
		{history.Range{Reverse: true, Before: 12, Limit: 3}, span(11, 11), false},
		{history.Range{Reverse: true, Before: 15, Limit: 4}, span(14, 11), false},
		{history.Range{Reverse: true, Before: 15, Limit: 3}, span(14, 12), true},
		{history.Range{Reverse: true, Before: 20, Limit: 1}, span(19, 19), true},
		{history.Range{Reverse: true, Before: 21, Limit: 1}, span(20, 20), true},
		{history.Range{Reverse: true, Before: math.MaxUint64, Limit: 100}, span(20, 11), false},
		{history.Range{Reverse: true, After: 15, Limit: 100}, span(20, 11), false}, // After means nothing in reverse
		{history.Range{Before: 15, After: 17, Limit: 100}, span(18, 20), false},    // nor Before forward
	} {
		c.r.Channel = "chat:a"
		p := mustRead(t, s, c.r)[0]
		got := offsetsOf(p.Events)
		if len(got)+len(c.want) > 0 && !reflect.DeepEqual(got, c.want) || p.More != c.more {
			t.Errorf("%+v: offsets %v, more %v; want %v, %v", c.r, got, p.More, c.want, c.more)
		}
		if p.First != 11 || p.Head != 20 {
			t.Errorf("%+v: first %d, head %d; want 11, 20", c.r, p.First, p.Head)
		}
	}
}

func reverseReadsNewestFirst(t *testing.T, s history.Store) {
	fill(t, s, "chat:a", 25)
	before, seen := uint64(0), []uint64{}
	for {
		p := mustRead(t, s, history.Range{Channel: "chat:a", Reverse: true, Before: before, Limit: 7})[0]
		seen = append(seen, offsetsOf(p.Events)...)
		if !p.More {
			break
		}
		before = seen[len(seen)-1]
	}
	if want := span(25, 1); !reflect.DeepEqual(seen, want) {
		t.Fatalf("paged in reverse: %v", seen)
	}
}

func limitAndMore(t *testing.T, s history.Store) {
	fill(t, s, "chat:a", 5)
	for limit := 1; limit <= 6; limit++ {
		for _, reverse := range []bool{false, true} {
			p := mustRead(t, s, history.Range{Channel: "chat:a", Limit: limit, Reverse: reverse})[0]
			if len(p.Events) != min(limit, 5) || p.More != (limit < 5) {
				t.Errorf("limit %d, reverse %v: %d events, more %v", limit, reverse, len(p.Events), p.More)
			}
		}
	}
}

func maxBytes(t *testing.T, s history.Store) {
	h := mustHead(t, s, "chat:a")
	run := runAfter(h, 4)
	for i := range run.Events {
		run.Events[i].Data = make([]byte, 80)
		run.Events[i].Meta = make([]byte, 20)
		run.Events[i].Binary = true
	}
	run.Events[2].Data, run.Events[2].Meta = []byte{}, nil // costs nothing
	mustStore(t, s, run)
	for _, c := range []struct {
		bytes   int
		reverse bool
		want    []uint64
	}{
		{1, false, span(1, 1)}, {99, false, span(1, 1)}, {100, false, span(1, 1)}, {199, false, span(1, 1)},
		{200, false, span(1, 3)}, {299, false, span(1, 3)}, {300, false, span(1, 4)}, {0, false, span(1, 4)},
		{1, true, span(4, 4)}, {100, true, span(4, 3)}, {199, true, span(4, 3)}, {200, true, span(4, 2)}, {1000, true, span(4, 1)},
	} {
		p := mustRead(t, s, history.Range{Channel: "chat:a", Limit: 10, MaxBytes: c.bytes, Reverse: c.reverse})[0]
		if got := offsetsOf(p.Events); !reflect.DeepEqual(got, c.want) || p.More != (len(c.want) < 4) {
			t.Errorf("max bytes %d, reverse %v: %v, more %v; want %v", c.bytes, c.reverse, got, p.More, c.want)
		}
	}
	// an empty event past the bound is still past it
	p := mustRead(t, s, history.Range{Channel: "chat:a", After: 1, Limit: 10, MaxBytes: 50})[0]
	if got := offsetsOf(p.Events); !reflect.DeepEqual(got, span(2, 2)) {
		t.Errorf("a page that is full with its first event goes on to %v", got)
	}
	// an empty first event does not let a second one in that does not fit
	p = mustRead(t, s, history.Range{Channel: "chat:a", After: 2, Limit: 10, MaxBytes: 50})[0]
	if got := offsetsOf(p.Events); !reflect.DeepEqual(got, span(3, 3)) || !p.More {
		t.Errorf("a page that begins with an empty event holds %v, more %v", got, p.More)
	}
	// bounds of several ranges in one call are their own
	pages := mustRead(t, s,
		history.Range{Channel: "chat:a", Limit: 10, MaxBytes: 100},
		history.Range{Channel: "chat:a", Limit: 10},
		history.Range{Channel: "chat:a", Limit: 10, MaxBytes: 200})
	for i, n := range []int{1, 4, 3} {
		if len(pages[i].Events) != n {
			t.Errorf("range %d: %d events, want %d", i, len(pages[i].Events), n)
		}
	}
}

func readCreatesNoRow(t *testing.T, s history.Store) {
	for range 2 {
		p := mustRead(t, s, history.Range{Channel: "chat:none", After: 7, Limit: 5})[0]
		if p.Exists {
			t.Fatalf("page %+v", p)
		}
	}
}

func manyRangesInOrder(t *testing.T, s history.Store) {
	random := seeded(t)
	for i := range 30 {
		fill(t, s, fmt.Sprintf("chat:%d", i), i)
	}
	var ranges []history.Range
	for range 400 {
		ranges = append(ranges, history.Range{
			Channel: fmt.Sprintf("chat:%d", random.IntN(33)), After: uint64(random.IntN(40)),
			Before: uint64(random.IntN(40)), Reverse: random.IntN(3) == 0, Limit: 1 + random.IntN(20),
		})
	}
	for i, p := range mustRead(t, s, ranges...) {
		alone := mustRead(t, s, ranges[i])[0]
		if !reflect.DeepEqual(p, alone) {
			t.Fatalf("range %+v: %+v among many, %+v alone", ranges[i], p, alone)
		}
	}
}

func badRange(t *testing.T, s history.Store) {
	for _, r := range []history.Range{{Channel: "a"}, {Channel: "a", Limit: -1}, {Channel: "a", Limit: 1, MaxBytes: -1}} {
		if _, err := s.Read(callContext(t), []history.Range{r}); err == nil {
			t.Errorf("%+v: no error", r)
		}
	}
}

// pagesAgree reads while another appends and a third trims: checkPage demands
// that head, first and events of each page are of one moment.
func pagesAgree(t *testing.T, s history.Store) {
	h := fill(t, s, "chat:a", 1)
	ctx, cancel := context.WithCancel(callContext(t))
	defer cancel()
	var group errgroup.Group
	// Owns the channel's head; ends with ctx; the test waits for it below.
	group.Go(func() error {
		for ctx.Err() == nil {
			run := runAfter(h, 3)
			outcomes, err := s.Append(context.WithoutCancel(ctx), []history.Run{run})
			if err != nil || outcomes[0] != history.Stored {
				return fmt.Errorf("append: %v, %w", outcomes, err)
			}
			h.Offset = run.NewHead()
			if _, err := s.Trim(context.WithoutCancel(ctx), []history.Retention{{Namespace: "chat", Size: 5}}, 0, 100); err != nil {
				return err
			}
		}
		return nil
	})
	for range 150 {
		pages := mustRead(t, s,
			history.Range{Channel: "chat:a", Limit: 1000},
			history.Range{Channel: "chat:a", Limit: 1000, Reverse: true})
		for _, p := range pages {
			if p.Head+1-p.First != uint64(len(p.Events)) {
				t.Fatalf("first %d, head %d, but %d events", p.First, p.Head, len(p.Events))
			}
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
