package router

import (
	"context"
	"fmt"
	"strings"
	"testing"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// handed is a channel that a router gives away: n events of 2 KB, none of them written.
func handed(epoch uint64, n int) *gatewayv1.HandedChannel {
	c := &gatewayv1.HandedChannel{Channel: "later:a", Epoch: epoch, Head: uint64(n), Behind: true, Unwritten: uint64(n), Moves: 1}
	for i := range n {
		c.Events = append(c.Events, &gatewayv1.BusEvent{Offset: uint64(i + 1), TimeMs: 1, Data: []byte(`"` + strings.Repeat("x", 2000) + `"`)})
	}
	return c
}

// handIn gives a channel in two parts, as a router whose life has just begun.
func (n *node) handIn(from string, life uint64, c *gatewayv1.HandedChannel) {
	rest := &gatewayv1.HandedChannel{Channel: c.Channel, Epoch: c.Epoch, Events: c.Events[len(c.Events)/2:]}
	c.Events, c.More = c.Events[:len(c.Events)/2], true
	stream := new(byte)
	n.hand.accept(&gatewayv1.HandRequest{Router: from, Life: life}, stream)
	for i, part := range []*gatewayv1.HandedChannel{c, rest} {
		n.hand.accept(&gatewayv1.HandRequest{Router: from, Life: life, Seq: uint64(i + 1), Revision: 1, Channels: []*gatewayv1.HandedChannel{part}}, stream)
	}
}

// A channel that is handed with more than its new owner may keep loses the oldest of what
// is unwritten: each of them is counted, and the others are written in a new epoch.
func TestAsyncEventsCutInAHandAreCounted(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.CacheBytes = 200 << 10 })
	n.handIn("r2", 1, handed(1<<20+7, 40))
	eventually(t, "what came is written", func() bool { return n.sequencer.behind.queued.Load() == 0 })
	lost, left := counted(n.metrics.asyncLost), len(n.stored("later:a"))
	if lost == 0 || int(lost)+left != 40 {
		t.Errorf("of 40 events %d are stored and %v counted as lost", left, lost)
	}
	if a := n.sync().ask(position("later:a", 1<<20+7, 40)); a.Recovered {
		t.Errorf("a position of the epoch that lost some: %v", a)
	}
}

// A hand that comes when its receiver has begun an epoch of its own brings nothing; what
// nobody had written is counted, once.
func TestAsyncEventsOfALateHandAreCounted(t *testing.T) {
	n := start(t, nil, quick)
	n.publish1("later:a", `1`, "")
	eventually(t, "it is written", func() bool { return n.sequencer.behind.queued.Load() == 0 })
	n.handIn("r2", 1, handed(3, 10))
	if lost := counted(n.metrics.asyncLost); lost != 10 {
		t.Errorf("%v counted as lost, want 10", lost)
	}
	at := n.sync().ask(&gatewayv1.Ask{Channel: "later:a"})
	n.handIn("r2", 2, handed(at.Epoch+5, 10)) // newer: ours ends, and was written
	n.handIn("r3", 1, handed(at.Epoch+5, 10))
	if lost := counted(n.metrics.asyncLost); lost != 10 {
		t.Errorf("%v counted as lost, want 10: the same hand twice loses nothing", lost)
	}
}

// Who gave a channel to a router that was killed before it answered counts what was
// unwritten of it.
func TestAsyncEventsOfALostHandAreCounted(t *testing.T) {
	n := start(t, nil, quick)
	n.publish1("later:a", `1`, "")
	n.eventuallyStored("later:a", "1")
	n.store.onAppend(func(context.Context, []history.Run, func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		return nil, errAway
	})
	for i := range 3 {
		n.publish1("later:a", fmt.Sprint(i), "")
	}
	shard := n.table.lock("later:a")
	g := &giver{h: n.hand, to: "r2"}
	g.open = n.hand.packLocked(shard.channels["later:a"], 5)
	n.sequencer.dropAsyncLocked(shard.channels["later:a"], unknownOutcome)
	n.table.forgetLocked(shard.channels["later:a"])
	shard.mu.Unlock()
	p := newHandPiece(g, 1)
	if p.add(g.open) {
		g.open = nil
	}
	g.sent = p
	g.lose()
	if lost := counted(n.metrics.asyncLost); lost != 3 {
		t.Errorf("%v counted as lost, want 3", lost)
	}
}
