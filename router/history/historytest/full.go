package historytest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// fullMost bounds what Full stores until the disk must be full: 64 MiB.
const fullMost = 1_024

// fullFor is how long FullDown goes on without room: a few starts of a server.
const fullFor = 2 * time.Second

// Full stores until there is no room, and goes on when makeRoom has made some,
// without opening the store again. What was acked stays, what failed is there
// whole or not at all, reads are answered all the time, and the error is none of
// the content: the caller tries again, it does not look for a bad event. (I1, I2)
func Full(t *testing.T, open Open, makeRoom func(history.Store)) {
	s := opened(t, open)
	h := mustHead(t, s, "full:a")
	small := fill(t, s, "full:small", 3)
	for i := 0; ; i++ {
		if i == fullMost {
			t.Fatal("the disk is never full")
		}
		var failed bool
		if h, failed = bigRun(t, s, h); failed {
			break
		}
	}
	acked := h.Offset
	t.Logf("full after %d events", acked)
	for range 5 { // it stays so, and answers
		if next, failed := bigRun(t, s, h); !failed {
			h, acked = next, next.Offset // a checkpoint made room for one more
		}
		wantLeft(t, s, "full:small", 1, 3)
		wantBig(t, s, acked)
	}

	makeRoom(s)
	deadline := time.Now().Add(callTimeout)
	for {
		next, failed := bigRun(t, s, mustHead(t, s, "full:a"))
		if !failed {
			h = next
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("there is room, and the store does not go on")
		}
		<-time.After(20 * time.Millisecond)
	}
	if h.Offset != acked+4 {
		t.Errorf("head %d after %d acked and four more", h.Offset, acked)
	}
	wantBig(t, s, h.Offset)
	mustStore(t, s, runAfter(small, 2))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = opened(t, open)
	wantBig(t, s, h.Offset)
	wantLeft(t, s, "full:small", 1, 5)
}

// FullDown is Full of a store that goes down when there is no room, and comes back by
// itself: reads fail too, and what an append failed with may have been stored whole.
func FullDown(t *testing.T, open Open, makeRoom func()) {
	s := opened(t, open)
	fill(t, s, "full:small", 3)
	h := mustHead(t, s, "full:a")
	acked := uint64(0)
	var full time.Time // since when
	for i := 0; full.IsZero() || time.Since(full) < fullFor; i++ {
		if i == fullMost {
			t.Fatal("the disk is never full")
		}
		next, failed := bigRun(t, s, h)
		if !failed {
			h, acked = next, next.Offset
			continue
		}
		if full.IsZero() {
			full = time.Now()
		}
		<-time.After(20 * time.Millisecond)
		if heads, err := s.Heads(callContext(t), []history.HeadQuery{{Channel: "full:a"}}); err == nil {
			h = heads[0] // it is back, until the next append
		}
	}
	t.Logf("%d events acked when the disk was full", acked)

	makeRoom()
	waitFor(t, s)
	if h = mustHead(t, s, "full:a"); h.Offset < acked || h.Offset%4 != 0 {
		t.Errorf("head %d after %d acked in runs of four", h.Offset, acked)
	}
	for range 3 {
		var failed bool
		if h, failed = bigRun(t, s, h); failed {
			t.Fatal("there is room, and the store does not go on")
		}
	}
	p, events := all(t, s, "full:a")
	if p.Head != h.Offset || uint64(len(events)) != h.Offset {
		t.Errorf("head %d with %d events, want %d", p.Head, len(events), h.Offset)
	}
	for _, e := range events {
		wantBigEvent(t, e)
	}
	wantLeft(t, s, "full:small", 1, 3)
}

// bigRun stores 64 KiB in four events, or fails as a full disk does.
func bigRun(t testing.TB, s history.Store, h history.Head) (next history.Head, failed bool) {
	t.Helper()
	run := runAfter(h, 4)
	for i := range run.Events {
		run.Events[i].Data = fmt.Appendf(make([]byte, 16<<10), "%d", run.Events[i].Offset)
		run.Events[i].Binary = true
	}
	outcomes, err := s.Append(callContext(t), []history.Run{run})
	var refused *history.RefusedError
	switch {
	case errors.As(err, &refused):
		t.Fatalf("a full disk is taken for bad content: %v", err)
	case err != nil:
		return h, true
	case outcomes[0] != history.Stored:
		t.Fatalf("outcome %v", outcomes[0])
	}
	h.Offset = run.NewHead()
	return h, false
}

// wantBig demands that full:a ends at head and that its events are the ones
// that were stored at their offsets.
func wantBig(t testing.TB, s history.Store, head uint64) {
	t.Helper()
	p := mustRead(t, s, history.Range{Channel: "full:a", Reverse: true, Limit: 8})[0]
	if p.Head != head {
		t.Fatalf("head %d, want %d", p.Head, head)
	}
	for _, e := range p.Events {
		wantBigEvent(t, e)
	}
}

func wantBigEvent(t testing.TB, e history.Event) {
	t.Helper()
	if got := string(e.Data[16<<10:]); got != fmt.Sprint(e.Offset) {
		t.Fatalf("offset %d holds the event of offset %s", e.Offset, got)
	}
}
