package views

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// members is a membership that a test moves.
type members struct {
	snapshot atomic.Pointer[presence.Snapshot]
	losses   atomic.Uint64
	changed  chan struct{}
}

func (m *members) Snapshot() *presence.Snapshot { return m.snapshot.Load() }
func (m *members) Changed() <-chan struct{}     { return m.changed }
func (m *members) Incarnation() uint64          { return 1 }
func (m *members) LeaseLosses() uint64          { return m.losses.Load() }

func router(id string, state gatewayv1.State) *presence.Member {
	m := &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: state}
	if id == "a" {
		m.Incarnation = 1
	}
	return m
}

const (
	serving  = gatewayv1.State_STATE_SERVING
	draining = gatewayv1.State_STATE_DRAINING
)

func start(cfg Config, all ...*presence.Member) (*Views, *members) {
	m := &members{changed: make(chan struct{})}
	m.snapshot.Store(presence.NewSnapshot(all, 16))
	cfg.Self = "a"
	return New(cfg, m), m
}

// After a pause nothing that was known before it is trusted, not for a moment: neither
// before the ticker has seen the pause, nor while it does.
func TestNothingIsTrustedWhileAPauseIsSeen(t *testing.T) {
	v, _ := start(Config{PauseLimit: time.Minute}, router("a", serving))
	for range 1_000 {
		v.beat.Store(v.elapsed())
		look := v.Look(time.Now())
		known := look.Trust()
		trusted := func() bool {
			look := v.Look(time.Now())
			return look.Trusted("chat:a", known, 1)
		}
		if !trusted() {
			t.Fatal("not trusted without a pause")
		}
		v.beat.Store(-int64(time.Hour)) // the process has stood still since
		var asks sync.WaitGroup
		begun := make(chan struct{})
		asks.Go(func() { // it ends when the pause has been seen
			close(begun)
			for v.pauses.Load() == known.Breaks {
				if trusted() {
					t.Error("trusted while the pause is seen")
				}
			}
		})
		<-begun
		v.tick()
		asks.Wait()
		if t.Failed() {
			return
		}
	}
}

// A channel that is held is doubted from the first moment after a pause, or a lost lease:
// another may have it by now. Alone, there is nobody who could.
func TestABreakIsDoubtedBeforeItIsCounted(t *testing.T) {
	v, m := start(Config{PauseLimit: time.Minute, Window: time.Minute}, router("a", serving), router("b", draining))
	v.beat.Store(v.elapsed())
	doubts := func(held Trust) bool {
		look := v.Look(time.Now())
		return look.Doubt("chat:a", true, held, 0)
	}
	trust := func() Trust {
		look := v.Look(time.Now())
		return look.Trust()
	}
	held := trust()
	if doubts(held) {
		t.Error("doubted without a pause")
	}
	v.beat.Store(-int64(time.Hour))
	if !doubts(held) {
		t.Error("not doubted after a pause")
	}
	v.tick()
	held = trust()
	m.losses.Add(1)
	if !doubts(held) {
		t.Error("not doubted after a lost lease")
	}
	m.snapshot.Store(presence.NewSnapshot([]*presence.Member{router("a", serving)}, 32))
	if doubts(held) {
		t.Error("doubted, and there is nobody else")
	}
}

// What one of our name that died had is not ours, and a router that leaves has nothing.
func TestWhatIsOurs(t *testing.T) {
	old := router("a", serving)
	old.Incarnation = 7
	v, m := start(Config{PauseLimit: time.Minute}, old, router("b", draining))
	owner := func() string {
		look := v.Look(time.Now())
		id, _ := look.Owner("chat:a")
		return id
	}
	if v.Owned("chat:a") || owner() != "" {
		t.Errorf("a dead one of our name: owned %v, owner %q", v.Owned("chat:a"), owner())
	}
	m.snapshot.Store(presence.NewSnapshot([]*presence.Member{router("a", serving), router("b0", serving)}, 32))
	if !v.Owned("chat:a") || owner() != "a" {
		t.Errorf("ours: owned %v, owner %q", v.Owned("chat:a"), owner())
	}
	before := v.Look(time.Now())
	v.Depart()
	after := v.Look(time.Now())
	if owner() != "b0" || !after.Leaving() || after.Revision() != before.Revision()+1 {
		t.Errorf("leaving: owner %q, revision %d after %d", owner(), after.Revision(), before.Revision())
	}
	if id, _ := before.Owner("chat:a"); id != "a" {
		t.Error("a picture has changed")
	}
}

// Edges that come and go are no new view; of routers only so many views are kept, and
// what was known before them is not trusted.
func TestViewsThatAreKept(t *testing.T) {
	v, m := start(Config{PauseLimit: time.Minute}, router("a", serving))
	look := v.Look(time.Now())
	known := look.Trust()
	edge := &presence.Member{Id: "e", Role: gatewayv1.Role_ROLE_EDGE, State: serving}
	m.snapshot.Store(presence.NewSnapshot([]*presence.Member{router("a", serving), edge}, 16))
	if look = v.Look(time.Now()); look.Trust() != known || v.Snapshot().Member(presence.Key{Role: edge.Role, ID: "e"}) == nil {
		t.Errorf("an edge came: %v, was %v", look.Trust(), known)
	}
	for i := range viewsKept {
		if look = v.Look(time.Now()); !look.Trusted("chat:a", known, 1) {
			t.Fatalf("not trusted after %d views", i)
		}
		m.snapshot.Store(presence.NewSnapshot([]*presence.Member{router("a", serving)}, int64(32+i)))
	}
	if look = v.Look(time.Now()); look.Trusted("chat:a", known, 1) {
		t.Error("trusted, and nobody knows any more whose it was")
	}
}

// After a change of owner the old one may still believe that it is: nothing is trusted for
// a while, unless the channel was handed over by who knew.
func TestTheOldOwnerIsRemembered(t *testing.T) {
	v, m := start(Config{PauseLimit: time.Minute, Recheck: time.Minute, Window: time.Minute}, router("a", draining), router("b", serving))
	v.View()
	m.snapshot.Store(presence.NewSnapshot([]*presence.Member{router("a", serving), router("b", draining)}, 32))
	look := v.Look(time.Now())
	if look.Trusted("chat:a", look.Trust(), 0) || look.Trusted("chat:a", look.Trust(), 16) {
		t.Error("trusted right after a change of owner")
	}
	if !look.Trusted("chat:a", look.Trust(), 32) {
		t.Error("not trusted, and the hand-over vouches for it")
	}
	if !look.Doubt("chat:a", false, Trust{}, 0) {
		t.Error("nobody is asked right after a change of owner")
	}
	known := look.Trust()
	m.snapshot.Store(presence.NewSnapshot([]*presence.Member{router("a", draining), router("b", serving)}, 48))
	look = v.Look(time.Now())
	if look.Trusted("chat:a", known, 32) || !look.TrustedUntilLost("chat:a", known, 32) {
		t.Error("a channel that has just been lost")
	}
}
