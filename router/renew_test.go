package router

import (
	"context"
	"sync"
	"testing"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// onBackups runs a test over each real store that can be set back.
func onBackups(t *testing.T, test func(*testing.T, *backup)) {
	for name, open := range backups() {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// last is the newest envelope of a channel.
func (b *recorder) last(channel string) *gatewayv1.Envelope {
	var last *gatewayv1.Envelope
	for _, e := range b.all() {
		if e.Channel == channel {
			last = e
		}
	}
	return last
}

// The store is set back under a router that has acked more: the channel goes on
// in a new epoch, publishes are not refused, no offset is given twice in one
// epoch, and who was in the old epoch hears it.
func TestRestoredStoreBeginsANewEpoch(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		n := start(t, b.store, nil)
		old := n.fill("chat:a", 5)
		n.publish1("chat:b", `1`, "")
		other := n.bus.last("chat:b").Epoch
		b.save()
		n.fill("chat:a", 4)
		if placed := n.publish1("chat:a", `10`, "k"); placed.Offset != 10 {
			t.Fatalf("before the restore: %v", placed)
		}
		b.restore()

		placed := n.publish1("chat:a", `"after"`, "k") // the key went with its event
		if placed.Offset != 6 || placed.Repeat {
			t.Errorf("published behind what is left: %v", placed)
		}
		env := n.bus.last("chat:a")
		if env.Epoch <= old || env.Base != 5 || offsetsOf(env.Events) != "[6]" {
			t.Errorf("on the bus: %v, the old epoch is %d", env, old)
		}
		e := n.sync()
		for _, offset := range []uint64{3, 5, 6, 9, 10} {
			if a := e.ask(position("chat:a", old, offset)); a.Recovered || a.Epoch != env.Epoch || a.Head != 6 || a.Base != 5 {
				t.Errorf("position %d of the old epoch: %v", offset, a)
			}
		}
		if a := e.ask(position("chat:a", env.Epoch, 5)); !a.Recovered || offsetsOf(a.Events) != "[6]" {
			t.Errorf("a position of the new epoch: %v", a)
		}
		if a := e.ask(&gatewayv1.Ask{Channel: "chat:a", Last: 3}); offsetsOf(a.Events) != "[4 5 6]" {
			t.Errorf("what is left is still read: %v", a)
		}
		if placed := n.publish1("chat:b", `2`, ""); placed.Offset != 2 || n.bus.last("chat:b").Epoch != other {
			t.Errorf("a channel that lost nothing: %v", placed)
		}
	})
}

// The router that acked is gone: only an edge has seen what the store has lost.
func TestEdgeThatHasSeenMoreBeginsANewEpoch(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		first := start(t, b.store, nil)
		old := first.fill("chat:a", 5)
		b.save()
		first.fill("chat:a", 4)
		b.restore()

		n := start(t, b.store, func(c *Config) { c.ID = "r2" })
		e := n.sync()
		seen := func(epoch, offset uint64) *gatewayv1.Ask {
			return &gatewayv1.Ask{Channel: "chat:a", SeenEpoch: epoch, SeenOffset: offset}
		}
		a := e.ask(seen(old, 9))
		if a.Epoch <= old || a.Head != 5 || a.Base != 5 {
			t.Fatalf("an edge that has seen 9 was told %v, the old epoch is %d", a, old)
		}
		if placed := n.publish1("chat:a", `6`, ""); placed.Offset != 6 || n.bus.last("chat:a").Epoch != a.Epoch {
			t.Errorf("published: %v", placed)
		}
		if b := e.ask(seen(old, 9)); b.Epoch != a.Epoch {
			t.Errorf("the same edge once more: %v", b)
		}
		if r := e.ask(position("chat:a", old, 9)); r.Recovered || r.Epoch != a.Epoch {
			t.Errorf("a client of the old epoch: %v", r)
		}
	})
}

// The sequence of a store that was set back has given its next epochs before.
func TestWipedStoreGivesNoEpochTwice(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		n := start(t, b.store, nil)
		for _, channel := range []string{"chat:x", "chat:y", "chat:z"} {
			n.fill(channel, 1)
		}
		old := n.fill("chat:a", 3)
		b.wipe()
		if placed := n.publish1("chat:a", `1`, ""); placed.Offset != 1 {
			t.Errorf("published: %v", placed)
		}
		if now := n.bus.last("chat:a"); now.Epoch <= old {
			t.Errorf("epoch %d after %d", now.Epoch, old)
		}
		if epoch := n.fill("chat:new", 1); epoch <= old {
			t.Errorf("a new channel has epoch %d; positions up to %d are out there", epoch, old)
		}
	})
}

// An edge alone brings about one new epoch in a minute, a client none at all.
func TestClaimsAreLimited(t *testing.T) {
	n := start(t, nil, nil)
	old := n.fill("chat:a", 3)
	e := n.sync()
	for _, p := range [][2]uint64{{old, 99}, {old + 7, 1}, {1 << 61, 5}} {
		if a := e.ask(position("chat:a", p[0], p[1])); a.Epoch != old || a.Recovered {
			t.Errorf("a client at %d:%d: %v", p[0], p[1], a)
		}
	}
	if a := e.ask(&gatewayv1.Ask{Channel: "chat:a", SeenEpoch: 1<<63 + 1, SeenOffset: 5}); a.Epoch != old {
		t.Errorf("an epoch that cannot be: %v", a)
	}
	a := e.ask(&gatewayv1.Ask{Channel: "chat:a", SeenEpoch: old, SeenOffset: 9})
	if a.Epoch <= old {
		t.Errorf("the first claim: %v", a)
	}
	for range 5 {
		if again := e.ask(&gatewayv1.Ask{Channel: "chat:a", SeenEpoch: a.Epoch, SeenOffset: 9}); again.Epoch != a.Epoch || again.Head != 3 {
			t.Errorf("a claim soon after: %v", again)
		}
	}
	if placed := n.publish1("chat:a", `4`, ""); placed.Offset != 4 {
		t.Errorf("published: %v", placed)
	}
}

// stale is a store whose next answers are old, as from a replica that lags.
type stale struct {
	history.Store
	mu  sync.Mutex
	old int // answers
	by  uint64
}

func (s *stale) age() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.old == 0 {
		return 0
	}
	s.old--
	return s.by
}

func (s *stale) set(answers int, by uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old, s.by = answers, by
}

func (s *stale) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	heads, err := s.Store.Heads(ctx, q)
	for by, i := s.age(), 0; i < len(heads); i++ {
		heads[i].Offset -= by
	}
	return heads, err
}

func (s *stale) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	pages, err := s.Store.Read(ctx, r)
	for by, i := s.age(), 0; i < len(pages); i++ {
		if pages[i].Head -= by; len(pages[i].Events) > int(by) {
			pages[i].Events = pages[i].Events[:len(pages[i].Events)-int(by)]
		}
	}
	return pages, err
}

// One old answer begins no epoch; nor do more of them, since the row, which is
// compared once more, knows better.
func TestStaleAnswersBeginNoEpoch(t *testing.T) {
	s := &stale{Store: memory.New(memory.Default())}
	n := start(t, s, nil)
	epoch, head := n.fill("chat:a", 5), uint64(5)
	e := n.sync()
	for _, answers := range []int{1, 2, 3} {
		n.forget("chat:a")
		s.set(answers, 2)
		seen := &gatewayv1.Ask{Channel: "chat:a", SeenEpoch: epoch, SeenOffset: head}
		a := e.ask(seen)
		for a.Status == gatewayv1.Status_STATUS_UNAVAILABLE {
			a = e.ask(seen)
		}
		if a.Epoch != epoch || a.Head != head {
			t.Errorf("%d old answers: %v", answers, a)
		}
		n.forget("chat:a")
		s.set(answers, 2)
		head++
		if placed := n.publish1("chat:a", `6`, ""); placed.Offset != head || n.bus.last("chat:a").Epoch != epoch {
			t.Errorf("published after %d old answers: %v in epoch %d, want %d in %d", answers, placed, n.bus.last("chat:a").Epoch, head, epoch)
		}
	}
}
