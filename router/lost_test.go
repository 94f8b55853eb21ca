package router

import (
	"context"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

// A router that no longer owns a channel, and is asked all the same, tells no head and no
// events that a store which was set back has lost: what it was shown itself begins a new
// epoch, whoever owns the channel.
func TestWhoIsNotTheOwnerTellsNothingThatTheStoreHasLost(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		n := start(t, b.store, func(c *Config) { c.HandoverGrace = time.Millisecond })
		old := n.fill("chat:a", 5)
		b.save()
		n.fill("chat:a", 4)
		n.giveAway()
		eventually(t, "it has no turn", func() bool {
			return n.turn("chat:a") == machine.Pass
		})
		b.restore()
		e := n.sync()
		for name, ask := range map[string]*gatewayv1.Ask{
			"head": {Channel: "chat:a"}, "behind": position("chat:a", old, 3), "at what is left": position("chat:a", old, 5),
			"lost": position("chat:a", old, 7), "at the lost head": position("chat:a", old, 9), "newest": {Channel: "chat:a", Last: 3},
		} {
			a := e.ask(ask)
			if a.Status != gatewayv1.Status_STATUS_OK || a.Recovered || a.Epoch <= old || a.Head != 5 || a.Base != 5 {
				t.Errorf("%s: %v; the store has 5 of 9, the old epoch is %d", name, a, old)
			}
			if want := "[3 4 5]"; ask.Last > 0 && offsetsOf(a.Events) != want {
				t.Errorf("%s: %v", name, a)
			}
		}
		page, err := n.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "chat:a"})
		if err != nil || page.Head != 5 || len(page.Events) != 5 {
			t.Errorf("history: %v, %v", page, err)
		}
		heads, err := b.store.Read(context.Background(), []history.Range{{Channel: "chat:a", Limit: 1}})
		if err != nil || heads[0].Epoch <= old {
			t.Errorf("the row: %v, %v", heads, err)
		}
	})
}
