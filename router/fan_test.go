package router

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// The list of quiet channels, which uses its memory anew, is a queue in order.
func TestChannelsToRepeatComeInOrder(t *testing.T) {
	f := &fan{cfg: &Config{QuietAfter: 2 * time.Second}}
	start := time.Unix(1000, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	var want []*channel
	now := start
	for step := range 20_000 {
		now = now.Add(time.Millisecond)
		if rng.IntN(5) < 3 && step < 15_000 {
			ch := &channel{}
			f.later(ch, now.Add(-time.Second)) // due now
			want = append(want, ch)
			continue
		}
		got := f.due(now)
		switch {
		case len(want) == 0 && got != nil:
			t.Fatal("a channel that was not listed")
		case len(want) > 0 && got != want[0]:
			t.Fatalf("step %d: another channel than the oldest", step)
		case len(want) > 0:
			want = want[1:]
		}
	}
	f.later(&channel{}, now)
	for ch := f.due(now); ch != nil; ch = f.due(now) {
		if len(want) == 0 {
			t.Fatal("a channel before its time")
		}
		want = want[1:]
	}
	if len(want) > 0 || len(f.quiet)-f.first != 1 {
		t.Fatalf("%d not found, %d left", len(want), len(f.quiet)-f.first)
	}
}

// Channels that wait for their head to be repeated hold up neither the bound of the
// table nor those who publish: more channels a second than heads are repeated.
func TestARushOfNewChannelsKeepsTheTableBounded(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.CacheBytes, c.RepeatsPerSec = 1<<20, 2000 })
	const batches, each = 10, 1000
	for b := range batches {
		request := &routerv1.PublishBatchRequest{}
		for i := range each {
			request.Publications = append(request.Publications, event(fmt.Sprintf("brief:%d-%d", b, i), `1`, ""))
		}
		if _, err := n.pub.PublishBatch(testContext(t), request); err != nil {
			t.Fatal(err)
		}
		if got := n.table.bytes.Load(); got > 2*n.table.limit { // a batch under way is as much again
			t.Fatalf("after %d channels the table has %d KiB, its bound is %d", (b+1)*each, got>>10, n.table.limit>>10)
		}
	}
	// The newest are still repeated, those that were let go cost no turn.
	eventually(t, "the head of the last channel is repeated", func() bool {
		last := n.bus.last(fmt.Sprintf("brief:%d-%d", batches-1, each-1))
		return last != nil && len(last.Events) == 0 && last.Head == 1
	})
}
