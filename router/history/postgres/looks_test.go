package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// Two routers look at a channel; the one that looked first schedules last. What it
// schedules is old, and the channel must not be marked as listed without being so.
func TestLateSettlingListsTheChannelAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cfg := Default()
	cfg.DSN = pgtest.Shared(t).NewDatabase(t)
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	store := func(n int) {
		t.Helper()
		heads, err := s.Heads(ctx, []history.HeadQuery{{Channel: "chat:a"}})
		if err != nil {
			t.Fatal(err)
		}
		run := history.Run{Channel: "chat:a", Epoch: heads[0].Epoch, Head: heads[0].Offset}
		for i := range n {
			run.Events = append(run.Events, history.Event{Offset: heads[0].Offset + 1 + uint64(i), TimeMS: time.Now().UnixMilli()})
		}
		if outcomes, err := s.Append(ctx, []history.Run{run}); err != nil || outcomes[0] != history.Stored {
			t.Fatalf("append: %v, %v", outcomes, err)
		}
	}
	trim := func(want int) {
		t.Helper()
		n, err := s.Trim(ctx, []history.Retention{{Namespace: "chat", Size: 2}}, 0, 100)
		if err != nil || n != want {
			t.Fatalf("%d went, %v, want %d", n, err, want)
		}
	}
	trim(0)
	store(3)
	old, err := s.due(ctx, time.Now(), 10)
	if err != nil || len(old) != 1 {
		t.Fatalf("due: %+v, %v", old, err)
	}
	store(1)
	trim(2)
	stale := nextLook{channel: old[0].channel, id: old[0].id, lookAt: 3, dueMS: never}
	if n, err := s.schedule(ctx, []nextLook{stale}, time.Now()); n != 1 || err != nil {
		t.Fatalf("schedule: %d, %v", n, err)
	}
	store(2)
	trim(2)
	store(1)
	trim(1)
}
