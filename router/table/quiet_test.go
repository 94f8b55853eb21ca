package table

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The list of quiet channels, which uses its memory anew, is a queue in order.
func TestChannelsToRepeatComeInOrder(t *testing.T) {
	q := quiet{after: 2 * time.Second}
	now := time.Unix(1000, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	var want []*entry
	for step := range 20_000 {
		now = now.Add(time.Millisecond)
		if rng.IntN(5) < 3 && step < 15_000 {
			e := &entry{}
			q.add(e, now.Add(-time.Second)) // due now
			want = append(want, e)
			continue
		}
		got := q.due(now)
		switch {
		case len(want) == 0 && got != nil:
			t.Fatal("a channel that was not listed")
		case len(want) > 0 && got != want[0]:
			t.Fatalf("step %d: another channel than the oldest", step)
		case len(want) > 0:
			want = want[1:]
		}
	}
	q.add(&entry{}, now)
	for e := q.due(now); e != nil; e = q.due(now) {
		if len(want) == 0 {
			t.Fatal("a channel before its time")
		}
		want = want[1:]
	}
	if len(want) > 0 || len(q.list)-q.first != 1 {
		t.Fatalf("%d not found, %d left", len(want), len(q.list)-q.first)
	}
}
