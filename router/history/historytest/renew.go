package historytest

import (
	"fmt"
	"reflect"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

// renewalOf asks for a new epoch of the row that was read as h.
func renewalOf(h history.Head) history.Renewal {
	return history.Renewal{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset}
}

func mustRenew(t testing.TB, s history.Store, renewals ...history.Renewal) []history.Head {
	t.Helper()
	heads, err := s.Renew(callContext(t), renewals)
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	if len(heads) != len(renewals) {
		t.Fatalf("renewal of %d channels: %d heads", len(renewals), len(heads))
	}
	for i, h := range heads {
		if h.Channel != renewals[i].Channel {
			t.Fatalf("head %d is of %q, want %q", i, h.Channel, renewals[i].Channel)
		}
	}
	return heads
}

func renewalKeeps(t *testing.T, s history.Store) {
	run := runAfter(mustHead(t, s, "chat:a"), 3)
	run.Events[1].Scope, run.Events[1].Key = "b", "k"
	mustStore(t, s, run)
	other := fill(t, s, "chat:b", 2)
	_, before := all(t, s, "chat:a")

	h := mustRenew(t, s, renewalOf(history.Head{Channel: "chat:a", Epoch: run.Epoch, Offset: 3}))[0]
	if h.Epoch <= run.Epoch || h.Offset != 3 {
		t.Fatalf("renewed: %+v, was epoch %d", h, run.Epoch)
	}
	p, after := all(t, s, "chat:a")
	if p.Epoch != h.Epoch || p.First != 1 || p.Head != 3 || !reflect.DeepEqual(before, after) {
		t.Fatalf("after the renewal %+v %v, before %v", p, after, before)
	}
	key := history.Key{Scope: "b", Key: "k"}
	if got := mustHead(t, s, "chat:a", key); got.Epoch != h.Epoch || got.Offset != 3 || got.Repeats[key] != 2 {
		t.Fatalf("head %+v, want the old key in epoch %d", got, h.Epoch)
	}
	repeat := keyedRun(h, "b", "k")
	_, err := s.Append(callContext(t), []history.Run{repeat})
	wantRefused(t, err)
	mustStore(t, s, runAfter(h, 2))
	wantLeft(t, s, "chat:a", 1, 5)
	if got := mustHead(t, s, "chat:b"); !reflect.DeepEqual(got, other) {
		t.Fatalf("another channel became %+v, was %+v", got, other)
	}
}

func renewalIsAFence(t *testing.T, s history.Store) {
	old := fill(t, s, "chat:a", 2)
	h := mustRenew(t, s, renewalOf(old))[0]
	if outcomes := mustAppend(t, s, runAfter(old, 1)); outcomes[0] != history.Lost {
		t.Fatalf("a run of the old epoch: %v", outcomes[0])
	}
	for name, stale := range map[string]history.Head{
		"the old epoch": old,
		"another head":  {Channel: "chat:a", Epoch: h.Epoch, Offset: 1},
		"a later epoch": {Channel: "chat:a", Epoch: h.Epoch + 1, Offset: 2},
	} {
		if got := mustRenew(t, s, renewalOf(stale))[0]; !reflect.DeepEqual(got, h) {
			t.Errorf("renewal for %s: %+v, want the row as it is, %+v", name, got, h)
		}
	}
	if got := mustRenew(t, s, renewalOf(history.Head{Channel: "chat:none", Epoch: 1}))[0]; got.Epoch != 0 {
		t.Errorf("a channel without a row: %+v", got)
	}
	if p := mustRead(t, s, history.Range{Channel: "chat:none", Limit: 1})[0]; p.Exists {
		t.Error("a renewal made a row")
	}
}

func renewedAboveSeen(t *testing.T, s history.Store) {
	a, b := fill(t, s, "chat:a", 1), fill(t, s, "chat:b", 1)
	high := renewalOf(a)
	high.Floor = a.Epoch + 1_000_000
	heads := mustRenew(t, s, renewalOf(b), high)
	if heads[1].Epoch <= high.Floor {
		t.Errorf("epoch %d, want one above %d", heads[1].Epoch, high.Floor)
	}
	if heads[0].Epoch <= b.Epoch {
		t.Errorf("epoch %d does not follow %d", heads[0].Epoch, b.Epoch)
	}
	// The sequence has gone on: nobody holds positions of what it gives next.
	if h := mustHead(t, s, "chat:new"); h.Epoch <= high.Floor {
		t.Errorf("a new channel has epoch %d, not above %d", h.Epoch, high.Floor)
	}
	for _, bad := range []history.Renewal{
		{Channel: "chat:a", Epoch: heads[1].Epoch, Head: 1, Floor: history.MaxEpoch + 1},
		{Channel: "chat:a", Epoch: heads[1].Epoch, Head: 1, New: heads[1].Epoch},
		{Epoch: 1},
	} {
		if _, err := s.Renew(callContext(t), []history.Renewal{bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if h := mustHead(t, s, "chat:a"); h.Epoch != heads[1].Epoch {
		t.Errorf("epoch %d after refusals, want %d", h.Epoch, heads[1].Epoch)
	}
}

func renewalNamesItsEpoch(t *testing.T, s history.Store) {
	a, b := fill(t, s, "chat:a", 4), mustHead(t, s, "chat:b")
	named := renewalOf(a)
	named.New = 7<<40 | 1
	heads := mustRenew(t, s, named, renewalOf(b))
	if heads[0].Epoch != named.New || heads[0].Offset != 4 {
		t.Errorf("renewed: %+v, want epoch %d", heads[0], named.New)
	}
	if heads[1].Epoch >= named.New {
		t.Errorf("the sequence followed a named epoch: %d", heads[1].Epoch)
	}
	mustStore(t, s, runAfter(heads[0], 1))
	last := renewalOf(mustHead(t, s, "chat:a"))
	last.New = history.MaxEpoch
	if h := mustRenew(t, s, last)[0]; h.Epoch != history.MaxEpoch {
		t.Errorf("renewed: %+v, want the last epoch", h)
	}
}

func renewedIsTrimmed(t *testing.T, s history.Store) {
	h := aged(t, s, "chat:a", 5*hour, 4*hour, hour, 0)
	mustStore(t, s, runAfter(mustRenew(t, s, renewalOf(h))[0], 3))
	if n := mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", TTL: 2 * hour}); n != 2 {
		t.Errorf("%d went by age, want 2", n)
	}
	if n := mustTrim(t, s, 0, 1000, history.Retention{Namespace: "chat", Size: 2}); n != 3 {
		t.Errorf("%d went by size, want 3", n)
	}
	wantLeft(t, s, "chat:a", 6, 7)
}

// oneRenewerWins: who comes later is told the epoch of the first.
func oneRenewerWins(t *testing.T, s history.Store) {
	const renewers, channels = 4, 50
	var renewals []history.Renewal
	for i := range channels {
		renewals = append(renewals, renewalOf(fill(t, s, fmt.Sprintf("chat:%d", i), 1)))
	}
	random := seeded(t)
	epochs := make([]map[string]uint64, renewers)
	var group errgroup.Group
	for i := range epochs {
		epochs[i] = make(map[string]uint64)
		mine := make([]history.Renewal, channels)
		for j, n := range random.Perm(channels) {
			mine[j] = renewals[n]
		}
		// Owns epochs[i]; ends after one call; waited for below.
		group.Go(func() error {
			heads, err := s.Renew(callContext(t), mine)
			for _, h := range heads {
				epochs[i][h.Channel] = h.Epoch
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, r := range renewals {
		for i := range epochs {
			if got := epochs[i][r.Channel]; got == r.Epoch || got != epochs[0][r.Channel] {
				t.Fatalf("%s: renewer %d read epoch %d, renewer 0 %d, it was %d", r.Channel, i, got, epochs[0][r.Channel], r.Epoch)
			}
		}
	}
}
