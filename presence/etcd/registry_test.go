package etcd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func TestMain(m *testing.M) {
	// etcd's embedded server leaves a few of its own behind for moments.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile.func1"))
}

const testTTL = 2 * time.Second

// bench is a real etcd with a registry on it.
type bench struct {
	*Registry
	t      *testing.T
	server *etcdserver.Server
}

func newBench(t *testing.T) *bench {
	t.Helper()
	server, err := etcdserver.Start(t.Context(), etcdserver.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	client, err := NewClient(ClientConfig{Endpoints: []string{server.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &bench{NewRegistry(client, "/spillway/test/", testTTL, nil), t, server}
}

// member is one registration.
type member struct {
	stop   func() error
	update chan struct{}

	mu         sync.Mutex // guards all below
	record     *presence.Member
	registered int
	lost       int
	failed     int
	err        error
	ended      bool
}

func record(id string, incarnation uint64) *presence.Member {
	return &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_EDGE, Incarnation: incarnation, State: gatewayv1.State_STATE_SERVING}
}

func (b *bench) register(r *presence.Member) *member {
	m := &member{update: make(chan struct{}, 1), record: r}
	tell := func(f func()) func() {
		return func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			f()
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	// Ended and waited for by stop.
	go func() {
		defer close(done)
		err := b.Register(ctx, presence.Registration{
			Self: func() *presence.Member {
				m.mu.Lock()
				defer m.mu.Unlock()
				return &presence.Member{Id: m.record.Id, Role: m.record.Role, Incarnation: m.record.Incarnation, State: m.record.State}
			},
			Update:     m.update,
			Registered: tell(func() { m.registered++ }),
			Lost:       tell(func() { m.lost++ }),
			KeepFailed: tell(func() { m.failed++ }),
		})
		tell(func() { m.err, m.ended = err, true })()
	}()
	m.stop = func() error {
		cancel()
		<-done
		return m.err
	}
	b.t.Cleanup(func() { m.stop() })
	return m
}

func (m *member) counts() (registered, lost int, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.registered, m.lost, m.ended
}

// stored is the record under an id, and its lease.
func (b *bench) stored(id string) (*presence.Member, clientv3.LeaseID) {
	b.t.Helper()
	key := b.key(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: id})
	got, err := b.client.Get(b.t.Context(), key)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(got.Kvs) == 0 {
		return nil, 0
	}
	return b.decode(key, got.Kvs[0].Value), clientv3.LeaseID(got.Kvs[0].Lease)
}

func (b *bench) put(r *presence.Member, lease clientv3.LeaseID) {
	b.t.Helper()
	value, err := encode(r)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client.Put(b.t.Context(), b.key(presence.KeyOf(r)), value, clientv3.WithLease(lease)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) grant(seconds int64) clientv3.LeaseID {
	b.t.Helper()
	grant, err := b.client.Grant(b.t.Context(), seconds)
	if err != nil {
		b.t.Fatal(err)
	}
	return grant.ID
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", within, what)
		}
		<-tick.C
	}
}

func (m *member) isRegistered() bool { n, _, _ := m.counts(); return n > 0 }

func TestARecordIsReadableAndUnderALease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.register(record("e1", 7))
	eventually(t, 5*time.Second, "registered", m.isRegistered)
	got, err := b.client.Get(t.Context(), "/spillway/test/members/edge/e1")
	if err != nil || len(got.Kvs) != 1 {
		t.Fatal(got, err)
	}
	if text := string(got.Kvs[0].Value); !strings.Contains(text, "STATE_SERVING") || got.Kvs[0].Lease == 0 {
		t.Errorf("the record is %s under lease %d", text, got.Kvs[0].Lease)
	}
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	if r, _ := b.stored("e1"); r != nil {
		t.Error("a record outlived its member")
	}
}

func TestALostLeaseIsCountedAndReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.register(record("e1", 7))
	eventually(t, 5*time.Second, "registered", m.isRegistered)
	_, lease := b.stored("e1")
	if _, err := b.client.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "registered again", func() bool { n, lost, _ := m.counts(); return n == 2 && lost == 1 })
	if r, again := b.stored("e1"); r == nil || r.Incarnation != 7 || again == lease {
		t.Errorf("stored: %v under %d", r, again)
	}
}

func TestARecordThatWasTamperedWithIsMended(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.register(record("e1", 7))
	eventually(t, 5*time.Second, "registered", m.isRegistered)
	_, lease := b.stored("e1")
	if _, err := b.client.Delete(t.Context(), b.key(presence.KeyOf(record("e1", 0)))); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "written again", func() bool { r, l := b.stored("e1"); return r != nil && l == lease })
	old := record("e1", 7)
	old.State = gatewayv1.State_STATE_DRAINING // as a restore from a backup may bring back
	b.put(old, lease)
	eventually(t, 5*time.Second, "state mended", func() bool { r, _ := b.stored("e1"); return r.State == gatewayv1.State_STATE_SERVING })
	if _, lost, _ := m.counts(); lost != 0 {
		t.Error("a lease was lost")
	}
}

func TestADeadHolderOfAnIDIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(record("e1", 1), b.grant(3))
	m := b.register(record("e1", 2))
	eventually(t, 10*time.Second, "took its place", func() bool { r, _ := b.stored("e1"); return r != nil && r.Incarnation == 2 })
	if err := m.stop(); err != nil {
		t.Error(err)
	}
}

func TestAHolderOfAnIDThatLeftIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	left := record("e1", 1)
	left.State = gatewayv1.State_STATE_LEFT
	b.put(left, b.grant(60))
	b.register(record("e1", 2))
	eventually(t, 5*time.Second, "took its place", func() bool { r, _ := b.stored("e1"); return r.Incarnation == 2 })
}

func TestALiveHolderOfAnIDRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.register(record("e1", 1))
	eventually(t, 5*time.Second, "registered", first.isRegistered)
	second := b.register(record("e1", 2))
	eventually(t, 15*time.Second, "refused", func() bool { _, _, ended := second.counts(); return ended })
	var duplicate *presence.DuplicateError
	if err := second.stop(); !errors.As(err, &duplicate) || duplicate.Key.ID != "e1" {
		t.Errorf("ended with %v", err)
	}
	if r, _ := b.stored("e1"); r.Incarnation != 1 {
		t.Error("the first one lost its record")
	}
}

// Sockets are worth more than a record: a running member is not ended by a twin.
func TestARunningMemberGoesOnWhenItsIDIsTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.register(record("e1", 1))
	eventually(t, 5*time.Second, "registered", m.isRegistered)
	usurper := b.grant(60)
	b.put(record("e1", 2), usurper)
	eventually(t, 5*time.Second, "loss counted", func() bool { _, lost, _ := m.counts(); return lost == 1 })
	if _, err := b.client.Revoke(t.Context(), usurper); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "registered again", func() bool { r, _ := b.stored("e1"); return r != nil && r.Incarnation == 1 })
	// and its farewell does not touch another's record
	b.put(record("e1", 3), b.grant(60))
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	if r, _ := b.stored("e1"); r == nil || r.State != gatewayv1.State_STATE_SERVING {
		t.Errorf("the other's record is %v", r)
	}
}

// watched collects what a watch says.
type watched struct {
	mu    sync.Mutex
	lists []presence.Change
	other []presence.Change
}

func (b *bench) watch() *watched {
	w := new(watched)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	// Ended and waited for when the test ends.
	go func() {
		defer close(done)
		_ = b.Watch(ctx, func(c presence.Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if c.Listed != presence.ListNone {
				w.lists = append(w.lists, c)
			} else {
				w.other = append(w.other, c)
			}
		})
	}()
	b.t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watched) counts() (lists, other int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.lists), len(w.other)
}

func TestAWatchTellsOfAllThatHappens(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(record("e0", 1), b.grant(60))
	w := b.watch()
	eventually(t, 5*time.Second, "listed", func() bool { n, _ := w.counts(); return n == 1 })
	m := b.register(record("e1", 1))
	eventually(t, 5*time.Second, "put told", func() bool { _, n := w.counts(); return n == 1 })
	m.mu.Lock()
	m.record.State = gatewayv1.State_STATE_DRAINING
	m.mu.Unlock()
	m.update <- struct{}{}
	eventually(t, time.Second, "state told at once", func() bool { _, n := w.counts(); return n == 2 })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "farewell and end told", func() bool { _, n := w.counts(); return n == 4 })
	// What is not a member is ignored; the watch lives on.
	for _, key := range []string{"edge/", "edge", "poet/e1", "edge/e5"} {
		if _, err := b.client.Put(t.Context(), b.members()+key, "{}"); err != nil {
			t.Fatal(err)
		}
	}
	b.put(record("e6", 1), b.grant(60))
	eventually(t, 5*time.Second, "the next member told", func() bool { _, n := w.counts(); return n == 5 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lists[0].List) != 1 || w.lists[0].Listed != presence.ListStart {
		t.Errorf("listed %v", w.lists[0])
	}
	if c := w.other; c[1].Put.State != gatewayv1.State_STATE_DRAINING || c[2].Put.State != gatewayv1.State_STATE_LEFT || c[3].Deleted.ID != "e1" {
		t.Errorf("told %v", c)
	}
	for i := 1; i < len(w.other); i++ {
		if w.other[i].Revision <= w.other[i-1].Revision {
			t.Error("revisions do not rise")
		}
	}
}

// A quiet watch must come through its probes: listing again and again would be
// the failure.
func TestAQuietWatchIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.watch()
	eventually(t, 5*time.Second, "listed", func() bool { n, _ := w.counts(); return n == 1 })
	// Writes elsewhere move the store's revision, and the watch must be told.
	for _, wait := range []time.Duration{time.Second, probeEvery, 2 * probeEvery} {
		if _, err := b.client.Put(t.Context(), "/elsewhere", wait.String()); err != nil {
			t.Fatal(err)
		}
		<-time.NewTimer(wait).C
	}
	if n, _ := w.counts(); n != 1 {
		t.Errorf("listed %d times", n)
	}
	b.put(record("e1", 1), b.grant(60))
	eventually(t, time.Second, "put told", func() bool { _, n := w.counts(); return n == 1 })
}

func TestACompactedWatchListsAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lease := b.grant(60)
	for i := range 20 {
		b.put(record("e1", uint64(i+1)), lease)
	}
	got, err := b.client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Compact(t.Context(), got.Header.Revision); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	reason := b.follower(func(presence.Change) { t.Error("told of the past") }).follow(ctx, 2)
	if reason != presence.ListCompacted {
		t.Errorf("ended because %v", reason)
	}
}

func TestAWatchAheadOfItsStoreListsAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*probeEvery+5*time.Second)
	defer cancel()
	if _, err := b.client.Get(ctx, "x"); err != nil { // connected
		t.Fatal(err)
	}
	if reason := b.follower(func(presence.Change) {}).follow(ctx, 1_000); reason != presence.ListWentBack {
		t.Errorf("ended because %v", reason)
	}
}

func TestClientLogGoesToDebug(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	zapLogger(log).With(zap.Int("a", 1)).Warn("boo", zap.String("b", "two"))
	for _, want := range []string{"level=DEBUG", "boo", "a=1", "b=two", "level_of_etcd=warn"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %s", out.String(), want)
		}
	}
	out.Reset()
	zapLogger(slog.New(slog.NewTextHandler(&out, nil))).Error("boo")
	zapLogger(nil).Error("boo")
	if out.Len() != 0 {
		t.Errorf("logged %q above debug", out.String())
	}
}
