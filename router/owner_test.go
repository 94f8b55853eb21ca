package router

import (
	"sync"
	"testing"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// After a pause nothing that was known before it is trusted, not for a moment: neither
// before the ticker has seen the pause, nor while it does.
func TestNothingIsTrustedWhileAPauseIsSeen(t *testing.T) {
	cfg := testConfig("r1")
	cfg.PauseLimit = time.Minute
	o := newOwnership(&cfg, newMembers(snapshotOf(1, routerMember("r1", ""))))
	for range 1_000 {
		o.beat.Store(int64(time.Since(o.start)))
		known := o.now()
		if !o.trusted("chat:a", known, 1) {
			t.Fatal("not trusted without a pause")
		}
		o.beat.Store(-int64(time.Hour)) // the process has stood still since
		var asks sync.WaitGroup
		begun := make(chan struct{})
		asks.Go(func() { // it ends when the pause has been seen
			close(begun)
			for o.pauses.Load() == known.breaks {
				if o.trusted("chat:a", known, 1) {
					t.Error("trusted while the pause is seen")
				}
			}
		})
		<-begun
		o.tick()
		asks.Wait()
		if t.Failed() {
			return
		}
	}
}

// A channel that memory alone numbers is doubted from the first moment after a pause:
// another may have it by now.
func TestAPauseIsDoubtedBeforeItIsCounted(t *testing.T) {
	n := start(t, nil, nil)
	n.publish1("brief:a", `1`, "")
	n.members.set(snapshotOf(2, routerMember("r1", ""), &presence.Member{Id: "r2", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_DRAINING}))
	turnOf := func() turn {
		shard := n.table.lock("brief:a")
		defer shard.mu.Unlock()
		return n.hand.turnLocked(shard.channels["brief:a"])
	}
	if got := turnOf(); got != turnServe {
		t.Fatalf("without a pause: %v", got)
	}
	n.own.beat.Store(-int64(time.Hour)) // the process has stood still since
	if got := turnOf(); got != turnWait {
		t.Errorf("after a pause: %v, want to wait for what the others say", got)
	}
}
