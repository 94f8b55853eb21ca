package router

import (
	"log/slog"
	"testing"
	"time"
)

// The lag that edges are told is the wait of the oldest question, whether it waits
// here or in the store.
func TestTheLagIsTheWaitOfTheOldestQuestion(t *testing.T) {
	cfg := Default()
	r := newReads(&cfg, nil, nil, nil, newMetrics(nil, &sizes{}), slog.New(slog.DiscardHandler))
	if d := r.lag(); d != 0 {
		t.Errorf("nobody waits, and the lag is %v", d)
	}
	now := time.Now()
	for i, channel := range []string{"a", "b", "a"} {
		r.add(readKey{channel: channel, head: true}, nil, waiter{deadline: now.Add(time.Minute), gone: func() bool { return false }, answer: func(readResult) {}})
		if i == 0 {
			r.queue.first().since = now.Add(-3 * time.Second)
		}
	}
	if d := r.lag(); d < 3*time.Second || d > time.Minute {
		t.Errorf("the oldest waits for 3 s, and the lag is %v", d)
	}
	if n := len(r.take()); n != 2 {
		t.Fatalf("%d flights", n)
	}
	if d := r.lag(); d < 3*time.Second {
		t.Errorf("in the store: %v", d)
	}
	clear(r.queue.running)
	if d := r.lag(); d != 0 {
		t.Errorf("all are answered: %v", d)
	}
}
