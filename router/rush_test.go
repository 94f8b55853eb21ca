package router

import (
	"fmt"
	"testing"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

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
		if got := n.counter("spillway_router_cache_bytes"); got > 2<<20 { // a batch under way is as much again
			t.Fatalf("after %d channels the table has %.0f bytes, its bound is 1 MiB", (b+1)*each, got)
		}
	}
	// The newest are still repeated, those that were let go cost no turn.
	eventually(t, "the head of the last channel is repeated", func() bool {
		last := n.bus.last(fmt.Sprintf("brief:%d-%d", batches-1, each-1))
		return last != nil && len(last.Events) == 0 && last.Head == 1
	})
}
