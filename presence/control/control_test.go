package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/control/controltest"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// member is one process.
type member struct {
	*control.Control
	kv   *controltest.KeyValue
	skew time.Duration
	stop func()

	mu   sync.Mutex // guards below
	told []*gatewayv1.Revocation
}

func (m *member) now() time.Time { return time.Now().Add(m.skew) }

func (m *member) heard() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var what []string
	for _, r := range m.told {
		what = append(what, r.User+r.Session+"/"+r.TokenId)
	}
	return what
}

// join starts a member on a store; it ends with the test at the latest.
func join(t *testing.T, store *controltest.Store, change func(*control.Config, *member)) *member {
	t.Helper()
	m := &member{kv: store.Join()}
	cfg := control.Config{Now: m.now}
	if change != nil {
		change(&cfg, m)
	}
	m.Control = control.New(cfg, m.kv)
	m.OnRevocation(func(r *gatewayv1.Revocation) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.told = append(m.told, r)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }() // stop ends it and waits
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(m.stop)
	return m
}

func stopAll(members []*member) {
	for _, m := range members {
		m.stop()
	}
}

func TestMembersThatStartTogetherAgreeOnOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		var all []*member
		for range 20 {
			all = append(all, join(t, store, nil))
		}
		defer stopAll(all)
		time.Sleep(time.Second)
		first, key, ok := all[0].Mint(all[0].now())
		if !ok || first != 1 || len(key) != control.KeyBytes {
			t.Fatalf("key %d of %d bytes, %v", first, len(key), ok)
		}
		for _, m := range all {
			if id, k, _ := m.Mint(m.now()); id != first || !bytes.Equal(k, key) {
				t.Errorf("another member mints with key %d", id)
			}
		}
		if names := store.Names(); len(names) != 1 || store.Writes() != 1 {
			t.Errorf("the store has %v after %d writes", names, store.Writes())
		}
	})
}

func TestARestartChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		m := join(t, store, nil)
		time.Sleep(time.Second)
		_, key, _ := m.Mint(time.Now())
		m.stop()
		m = join(t, store, nil)
		defer m.stop()
		time.Sleep(10 * time.Second)
		if id, again, _ := m.Mint(time.Now()); id != 1 || !bytes.Equal(again, key) || store.Writes() != 1 {
			t.Errorf("after a restart key %d, %d writes", id, store.Writes())
		}
	})
}

// sealed is a ticket of which only the key matters.
type sealed struct {
	id    uint32
	key   []byte
	until time.Time
}

// Over days of rotations, members that come, go and are cut off, and clocks that
// differ by minutes: what one member seals every other can open as long as it lives.
func TestEveryTicketOpensEverywhereForItsLife(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { ringRun(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func ringRun(t *testing.T, r *rand.Rand) {
	const life, cut = 20 * time.Minute, 30 * time.Second
	store := controltest.NewStore()
	start := func() *member {
		return join(t, store, func(cfg *control.Config, m *member) {
			m.skew = time.Duration(r.Int64N(int64(10*time.Minute))) - 5*time.Minute
			cfg.Keeper, cfg.RotateKeys, cfg.TicketLife = r.IntN(2) == 0, 2*time.Hour, life
		})
	}
	all := []*member{start(), start(), start(), start()}
	defer func() { stopAll(all) }()
	var tickets []sealed
	keys, opened := map[uint32]bool{}, 0
	for range 24 * 60 {
		time.Sleep(time.Minute)
		switch i := r.IntN(len(all)); r.IntN(40) {
		case 0: // a restart
			all[i].stop()
			all[i] = start()
			time.Sleep(time.Second)
		case 1: // the key-value store is away for a while, less than a new key waits
			all[i].kv.Away(true)
			time.Sleep(cut)
			all[i].kv.Away(false)
			time.Sleep(time.Second)
		}
		now := time.Now()
		tickets = slices.DeleteFunc(tickets, func(s sealed) bool { return now.After(s.until) })
		for _, m := range all {
			id, key, ok := m.Mint(m.now())
			if !ok {
				t.Fatal("no key")
			}
			keys[id] = true
			tickets = append(tickets, sealed{id, key, now.Add(life)})
		}
		for _, s := range tickets {
			for _, m := range all {
				opened++
				if key, ok := m.Key(s.id); !ok || !bytes.Equal(key, s.key) {
					t.Fatalf("a ticket under key %d, good for %v, cannot be opened", s.id, s.until.Sub(now))
				}
			}
		}
	}
	if len(keys) < 10 || len(store.Names()) > 4 {
		t.Errorf("%d keys were used, %v are left", len(keys), store.Names())
	}
	t.Logf("%d openings under %d keys", opened, len(keys))
}

func TestAKeyValueStoreThatIsAwayLeavesEverythingAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		writer, cut := join(t, store, nil), join(t, store, nil)
		defer stopAll([]*member{writer, cut})
		time.Sleep(time.Second)
		put(t, writer, &gatewayv1.Revocation{User: "ann", TokenId: "t1"})
		time.Sleep(time.Second)
		id, key, _ := cut.Mint(time.Now())

		cut.kv.Away(true)
		put(t, writer, &gatewayv1.Revocation{User: "bob", IssuedBeforeMs: uint64(time.Now().UnixMilli())})
		put(t, writer, &gatewayv1.Revocation{User: "ann", DisconnectUser: true})
		begin(t, writer, drain("e1"))
		time.Sleep(10 * time.Minute / 2)
		if again, k, ok := cut.Mint(time.Now()); again != id || !ok || !bytes.Equal(k, key) || !cut.Revoked("ann", "t1", time.Now()) {
			t.Error("what was known is gone")
		}
		if err := cut.PutRevocation(t.Context(), &gatewayv1.Revocation{User: "x", TokenId: "y"}); !errors.Is(err, controltest.ErrAway) {
			t.Errorf("a write without the key-value store: %v", err)
		}
		if got := cut.heard(); !slices.Equal(got, []string{"ann/t1"}) {
			t.Errorf("told %v", got)
		}

		cut.kv.Away(false) // and what it missed is told, once
		time.Sleep(time.Second)
		got := cut.heard()
		slices.Sort(got)
		if !slices.Equal(got, []string{"ann/", "ann/t1", "bob/"}) {
			t.Errorf("told %v", got)
		}
		if !cut.Revoked("bob", "", time.Now().Add(-time.Hour)) || len(cut.Operations()) != 1 {
			t.Error("it did not catch up")
		}
	})
}

func put(t *testing.T, m *member, r *gatewayv1.Revocation) {
	t.Helper()
	if err := m.PutRevocation(context.Background(), r); err != nil {
		t.Fatal(err)
	}
}

func drain(node string) *gatewayv1.Operation {
	return &gatewayv1.Operation{Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: node, Incarnation: 7, DeadlineMs: 25_000}
}

func begin(t *testing.T, m *member, op *gatewayv1.Operation) *gatewayv1.Operation {
	t.Helper()
	if err := m.PutOperation(context.Background(), op); err != nil {
		t.Fatal(err)
	}
	return op
}

func end(m *member, id string, state gatewayv1.OperationState) error {
	return m.UpdateOperation(context.Background(), id, func(op *gatewayv1.Operation) bool {
		op.State = state
		return true
	})
}

// A backup is restored, or everything wiped: what members know wins, and goes back.
func TestARestoredKeyValueStoreGetsBackWhatItForgot(t *testing.T) {
	for name, wipe := range map[string]bool{"older": false, "empty": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := controltest.NewStore()
				all := []*member{join(t, store, nil), join(t, store, nil), join(t, store, nil)}
				defer func() { stopAll(all) }()
				time.Sleep(time.Second)
				op := begin(t, all[0], drain("e1"))
				image := controltest.Image{}
				if !wipe {
					image = store.Save()
				}
				if err := end(all[1], op.Id, gatewayv1.OperationState_OPERATION_STATE_DONE); err != nil {
					t.Fatal(err)
				}
				put(t, all[0], &gatewayv1.Revocation{User: "ann", TokenId: "t1"})
				if err := all[2].PutSettings(t.Context(), "drain: {notice: 1s}"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				before := map[string][]byte{}
				for _, n := range store.Names() {
					before[n] = store.Value(n)
				}
				_, key, _ := all[0].Mint(time.Now())

				store.Restore(image)
				synctest.Wait()
				for _, m := range all { // cut again before anything was written back
					m.kv.Away(true)
					m.kv.Away(false)
				}
				all = append(all, join(t, store, nil)) // one that knows nothing may come first
				time.Sleep(30 * time.Second)
				for n, value := range before {
					if !bytes.Equal(store.Value(n), value) && !strings.HasPrefix(n, control.FolderKeys) {
						t.Errorf("%s is %s, was %s", n, store.Value(n), value)
					}
				}
				for _, m := range all {
					_, k, _ := m.Mint(time.Now())
					done := m.Operation(op.Id)
					if !bytes.Equal(k, key) || !m.Revoked("ann", "t1", time.Now()) || m.Settings().Yaml == "" ||
						done == nil || done.State != gatewayv1.OperationState_OPERATION_STATE_DONE {
						t.Errorf("a member has another key, or forgot: %v", done)
					}
				}
			})
		})
	}
}

func TestRevocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		m := join(t, store, func(cfg *control.Config, _ *member) { cfg.Keeper = true })
		defer m.stop()
		time.Sleep(time.Second)
		at := time.Now()
		put(t, m, &gatewayv1.Revocation{User: "ann", TokenId: "t1"})
		put(t, m, &gatewayv1.Revocation{User: "bob", IssuedBeforeMs: uint64(at.UnixMilli())})
		put(t, m, &gatewayv1.Revocation{Session: "s1", CloseCode: 4200})
		for _, c := range []struct {
			user, token string
			issued      time.Time
			bad         bool
		}{
			{"ann", "t1", at, true}, {"ann", "t1", at.Add(time.Hour), true}, {"ann", "t2", at, false}, {"ann", "", at, false}, {"eve", "t1", at, false},
			{"bob", "t1", at.Add(-time.Millisecond), true}, {"bob", "", time.Time{}, true}, {"bob", "t9", at, false},
		} {
			if m.Revoked(c.user, c.token, c.issued) != c.bad {
				t.Errorf("%v: not so", c)
			}
		}
		// An earlier moment does not weaken a later one, whoever says it again.
		put(t, m, &gatewayv1.Revocation{User: "bob", IssuedBeforeMs: uint64(at.Add(-time.Hour).UnixMilli())})
		if !m.Revoked("bob", "", at.Add(-time.Minute)) {
			t.Error("a revocation was weakened")
		}
		for _, wrong := range []*gatewayv1.Revocation{
			{}, {User: "ann"}, {TokenId: "t"}, {User: "a", TokenId: "t", IssuedBeforeMs: 1}, {User: "a", DisconnectUser: true, CloseCode: 1000},
			{User: strings.Repeat("x", 1025), TokenId: "t"},
		} {
			var invalid *control.RevocationError
			if err := m.PutRevocation(t.Context(), wrong); !errors.As(err, &invalid) {
				t.Errorf("%v: %v", wrong, err)
			}
		}
		time.Sleep(11 * time.Minute)
		if n := count(store, control.FolderRevocations); n != 2 {
			t.Errorf("%d are kept after the disconnect's life", n)
		}
		time.Sleep(25 * time.Hour)
		if m.Revoked("ann", "t1", at) || m.Revoked("bob", "", time.Time{}) || count(store, control.FolderRevocations) != 0 {
			t.Error("they are not forgotten after the longest life of a token")
		}
	})
}

func count(store *controltest.Store, folder string) int {
	n := 0
	for _, name := range store.Names() {
		if strings.HasPrefix(name, folder+"/") {
			n++
		}
	}
	return n
}

func TestTooManyRevocationsAreFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		m := join(t, store, func(cfg *control.Config, _ *member) { cfg.MaxRevocations = 10 })
		defer m.stop()
		time.Sleep(time.Second)
		for i := range 100 {
			put(t, m, &gatewayv1.Revocation{User: fmt.Sprint("user", i%4), TokenId: fmt.Sprint("t", i)})
		}
		if n := count(store, control.FolderRevocations); n != 10+4 {
			t.Errorf("%d records", n)
		}
		for i := range 100 {
			if !m.Revoked(fmt.Sprint("user", i%4), fmt.Sprint("t", i), time.Now()) {
				t.Errorf("token %d is good", i)
			}
		}
		if m.Revoked("user1", "new", time.Now().Add(2*time.Minute)) {
			t.Error("a token of later is bad")
		}
	})
}

// bus is a Messenger for all members.
type bus struct {
	mu   sync.Mutex // guards below
	ears map[int]func([]byte)
}

func (b *bus) Broadcast(_ string, message []byte) error {
	b.mu.Lock()
	ears := make([]func([]byte), 0, len(b.ears))
	for _, e := range b.ears {
		ears = append(ears, e)
	}
	b.mu.Unlock()
	for _, e := range ears {
		e(message)
	}
	return nil
}

func (b *bus) Listen(ctx context.Context, _ string, heard func([]byte)) error {
	b.mu.Lock()
	if b.ears == nil {
		b.ears = map[int]func([]byte){}
	}
	n := len(b.ears)
	b.ears[n] = heard
	b.mu.Unlock()
	<-ctx.Done()
	return nil
}

func TestTheBusIsQuickerAndTheKeyValueStoreIsSure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, messenger := controltest.NewStore(), &bus{}
		with := func(cfg *control.Config, _ *member) { cfg.Messenger = messenger }
		writer, cut := join(t, store, with), join(t, store, with)
		defer stopAll([]*member{writer, cut})
		time.Sleep(time.Second)
		cut.kv.Away(true)
		put(t, writer, &gatewayv1.Revocation{User: "ann", TokenId: "t1"})
		if !cut.Revoked("ann", "t1", time.Now()) {
			t.Error("the bus did not tell")
		}
		_ = messenger.Broadcast("", []byte("nonsense"))
		_ = messenger.Broadcast("", nil)
		cut.kv.Away(false)
		time.Sleep(time.Second)
		if got := cut.heard(); !slices.Equal(got, []string{"ann/t1"}) {
			t.Errorf("told %v, once is enough", got)
		}
		if !cut.Revoked("ann", "t1", time.Now()) {
			t.Error("the listing forgot it")
		}
	})
}

func TestOneOperationAtAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			evacuate  = gatewayv1.OperationKind_OPERATION_KIND_EVACUATE
			rebalance = gatewayv1.OperationKind_OPERATION_KIND_REBALANCE
		)
		store := controltest.NewStore()
		var all []*member
		for range 10 {
			all = append(all, join(t, store, nil))
		}
		defer func() { stopAll(all) }()
		time.Sleep(time.Second)
		var wait sync.WaitGroup
		results := make([]error, len(all))
		for i, m := range all {
			wait.Go(func() { results[i] = m.PutOperation(context.Background(), drain("e1")) })
		}
		wait.Wait()
		began := 0
		for _, err := range results {
			if err == nil {
				began++
			} else if !errors.Is(err, control.ErrConflict) {
				t.Error(err)
			}
		}
		if began != 1 {
			t.Errorf("%d drains of one edge began", began)
		}
		synctest.Wait() // everybody has seen it
		m := all[0]
		op := m.Operations()[0]
		if err := m.PutOperation(t.Context(), op); err != nil {
			t.Errorf("a repeat with the same id: %v", err)
		}
		for _, c := range []struct {
			op      *gatewayv1.Operation
			refused bool
		}{
			{&gatewayv1.Operation{Kind: rebalance, Node: "e1", Incarnation: 7}, true},
			{drain("e2"), false},
			{&gatewayv1.Operation{Kind: rebalance, Node: "e3"}, false},
			{drain("e3"), false}, // it may leave in the middle of that
			{&gatewayv1.Operation{Kind: evacuate, Region: "eu"}, false},
			{&gatewayv1.Operation{Kind: evacuate, Region: "eu"}, true},
			{&gatewayv1.Operation{Kind: evacuate, Region: "us"}, false},
		} {
			if err := m.PutOperation(t.Context(), c.op); errors.Is(err, control.ErrConflict) != c.refused {
				t.Errorf("%v: %v", c.op, err)
			}
		}
		again := drain("e1")
		again.Incarnation = 8 // the old process is gone, whatever became of its operation
		begin(t, m, again)
	})
}

func TestAnEndIsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		m := join(t, store, func(cfg *control.Config, _ *member) { cfg.Keeper = true })
		defer m.stop()
		time.Sleep(time.Second)
		op := begin(t, m, drain("e1"))
		if err := end(m, op.Id, gatewayv1.OperationState_OPERATION_STATE_DONE); err != nil {
			t.Fatal(err)
		}
		if got := m.Operation(op.Id); got.EndedMs == 0 {
			t.Error("nothing says when it ended")
		}
		if err := end(m, op.Id, gatewayv1.OperationState_OPERATION_STATE_RUNNING); err == nil {
			t.Error("it runs again")
		}
		if err := end(m, "nothing", gatewayv1.OperationState_OPERATION_STATE_DONE); !errors.Is(err, control.ErrNoOperation) {
			t.Errorf("an update of nothing: %v", err)
		}
		lost := begin(t, m, drain("e2"))
		time.Sleep(5 * time.Minute)
		if got := m.Operation(lost.Id); got.State != gatewayv1.OperationState_OPERATION_STATE_RUNNING {
			t.Errorf("given up early: %v", got)
		}
		time.Sleep(6 * time.Minute)
		if got := m.Operation(lost.Id); got.State != gatewayv1.OperationState_OPERATION_STATE_FAILED || got.Message == "" {
			t.Errorf("nobody ended it: %v", got)
		}
		time.Sleep(25 * time.Hour)
		if n := count(store, control.FolderOperations); n != 0 {
			t.Errorf("%d are kept after a day", n)
		}
	})
}

func TestWrongSettingsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		m := join(t, store, func(cfg *control.Config, _ *member) {
			cfg.CheckSettings = func(yaml string) error {
				if yaml == "bad" {
					return errors.New("bad: is not good")
				}
				return nil
			}
		})
		defer m.stop()
		time.Sleep(time.Second)
		if err := m.PutSettings(t.Context(), "good"); err != nil {
			t.Fatal(err)
		}
		var wrong *control.SettingsError
		if err := m.PutSettings(t.Context(), "bad"); !errors.As(err, &wrong) || m.Settings().Yaml != "good" {
			t.Errorf("%v, settings are %q", err, m.Settings().Yaml)
		}
		if err := m.PutSettings(t.Context(), strings.Repeat("x", 65<<10)); !errors.As(err, &wrong) {
			t.Errorf("too long: %v", err)
		}
		changed := m.Changed()
		if err := m.PutSettings(t.Context(), ""); err != nil || m.Settings().Yaml != "" {
			t.Errorf("%v, settings are %q", err, m.Settings().Yaml)
		}
		<-changed
	})
}

// Whatever is in the key-value store, a member goes on with what it can read.
func TestRecordsThatAreNoneAreCountedAndLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := controltest.NewStore()
		for _, name := range []string{"ticket-keys/1", "ticket-keys/x", "operations/a", "revocations/b", "settings/gateway", "settings/other"} {
			store.Set(name, []byte(`{"id": 5, "key": "c2hvcnQ="`))
		}
		store.Set("operations/z", []byte(`{"id": "y"}`))
		m := join(t, store, nil)
		defer m.stop()
		time.Sleep(time.Second)
		if len(m.Operations()) != 0 || m.Settings().Yaml != "" || len(m.heard()) != 0 {
			t.Error("nonsense was believed")
		}
		synctest.Wait()
		store.Set("operations/y", []byte(`{"id": "y", "unknown": 5}`))
		time.Sleep(time.Second)
		if len(m.Operations()) != 1 {
			t.Error("a good record was not taken")
		}
	})
}
