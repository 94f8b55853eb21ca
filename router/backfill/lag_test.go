package backfill

import (
	"log/slog"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/channel"
)

// The lag that edges are told is the wait of the oldest question, whether it waits
// here or in the store.
func TestTheLagIsTheWaitOfTheOldestQuestion(t *testing.T) {
	cfg := Config{Reads: 1, Window: time.Millisecond, Pace: time.Millisecond, Ranges: 10, Bytes: 1 << 20, Queue: 10, Deadline: time.Second}
	b := New(cfg, nil, nil, func(*channel.ReadAnswer) {}, slog.New(slog.DiscardHandler))
	if d := b.Lag(); d != 0 {
		t.Errorf("nobody waits, and the lag is %v", d)
	}
	now := time.Now()
	for i, name := range []string{"a", "b", "a"} {
		b.Add(&channel.ReadQuery{Key: channel.ReadKey{Channel: name, Head: true}, Deadline: now.Add(time.Minute), Gone: func() bool { return false }})
		if i == 0 {
			b.queue.first().since = now.Add(-3 * time.Second)
		}
	}
	if d := b.Lag(); d < 3*time.Second || d > time.Minute {
		t.Errorf("the oldest waits for 3 s, and the lag is %v", d)
	}
	if n := len(b.take()); n != 2 {
		t.Fatalf("%d flights", n)
	}
	if d := b.Lag(); d < 3*time.Second {
		t.Errorf("in the store: %v", d)
	}
	clear(b.queue.running)
	if d := b.Lag(); d != 0 {
		t.Errorf("all are answered: %v", d)
	}
}
