package router

import (
	"context"
	"fmt"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// What a store did not answer for is let go with those who waited for it.
func TestUnknownRunsGoWithThoseWhoWait(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.RetryFor, c.API.PublishDeadline = 100*time.Millisecond, 2*time.Second })
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		return nil, errAway
	})
	for i := range 3 {
		if _, err := n.publishErr(fmt.Sprintf("chat:%d", i), `1`, ""); err == nil {
			t.Error("acked")
		}
	}
	eventually(t, "nothing waits", func() bool { return waiting(n.Router) == 0 })
	busy := func() (all int) {
		for i := range 3 {
			n.table.With(fmt.Sprintf("chat:%d", i), func(c *machine.Channel, _ *machine.Step) {
				if c.Busy() || c.State().Unknown > 0 {
					all++
				}
			})
		}
		return all
	}
	eventually(t, "nothing is kept", func() bool { return busy() == 0 })
}

// between is a store in which something happens after heads were read.
type between struct {
	history.Store
	after func()
}

func (b *between) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	heads, err := b.Store.Heads(ctx, q)
	if f := b.after; f != nil && len(q) > 0 && len(q[0].Keys) > 0 {
		b.after = nil
		f()
	}
	return heads, err
}

// A key is known by the position that it was looked up with: one that is stored by
// another router meanwhile, and seen by a read, is a repeat and no refused event.
func TestKeyStoredBesideItsLookUpIsARepeat(t *testing.T) {
	shared := memory.New(memory.Default())
	store := &between{Store: shared}
	n := start(t, store, nil)
	first := n.publish1("chat:a", `1`, "")
	other := start(t, shared, func(c *Config) { c.ID = "r2" })
	other.members.set(snapshotOf(5, routerMember("r2", "")))
	store.after = func() {
		other.publish1("chat:a", `2`, "k")
		n.sync().ask(&gatewayv1.Ask{Channel: "chat:a", SeenEpoch: other.bus.last("chat:a").Epoch, SeenOffset: 2})
	}
	if again := n.publish1("chat:a", `2`, "k"); !again.Repeat || again.Offset != 2 || again.Epoch != first.Epoch {
		t.Errorf("placed %v", again)
	}
}
