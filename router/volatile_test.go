package router

import (
	"fmt"
	"testing"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// Of one view no epoch is begun twice: neither after one that was begun behind another,
// nor after very many evictions.
func TestEpochsOfOneViewAreBegunOnce(t *testing.T) {
	s := start(t, nil, nil).sequencer
	last := uint64(0)
	begin := func(after uint64) {
		t.Helper()
		epoch := s.nextEpoch(after)
		if epoch <= last {
			t.Fatalf("epoch %d is begun after %d", epoch, last)
		}
		last = epoch
		s.table.volatile() // its channel is evicted
	}
	for range 100 {
		begin(last)
		begin(0)
	}
	s.generation.Store(1<<epochShift - 10)
	for range 100 {
		begin(0)
	}
}

// Recent keys are part of what the table may hold, and go with their channel.
func TestRecentKeysAreCounted(t *testing.T) {
	const channel = "brief:a"
	n := start(t, nil, nil)
	request := &routerv1.PublishBatchRequest{}
	for i := range 2 * recentKeysMax {
		request.Publications = append(request.Publications, event(channel, `1`, fmt.Sprintf("%0100d", i)))
	}
	if _, err := n.pub.PublishBatch(testContext(t), request); err != nil {
		t.Fatal(err)
	}
	shard := n.table.lock(channel)
	ch := shard.channels[channel]
	counted, want := ch.bytes-ch.tail.bytes-entryBytes-2*int64(len(channel)), int64(recentKeysMax*(keyBytes+101))
	n.table.dropLocked(ch)
	shard.mu.Unlock()
	if counted != want {
		t.Errorf("%s: keys count %d bytes, want %d", channel, counted, want)
	}
	if left := n.table.bytes.Load(); left != 0 {
		t.Errorf("%s: the table counts %d bytes without it", channel, left)
	}
}
