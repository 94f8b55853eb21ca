package router_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router"
	"github.com/spillway-io/spillway/router/bus"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/sqlite"
	"github.com/spillway-io/spillway/router/namespace"
)

// member is one router with what it is connected to.
type member struct {
	gate    *gatedStore
	members *view
	conn    *grpc.ClientConn
	bus     *nats.Conn
	cancel  context.CancelFunc
	ended   chan struct{}
	once    sync.Once
}

// start runs one more router; by its view it owns everything.
func (g *ground) start() *member {
	g.t.Helper()
	g.started++
	id := fmt.Sprint("r", g.started)
	cfg := router.Default()
	cfg.ID, cfg.API.Listen = id, "127.0.0.1:0"
	cfg.DrainDelay, cfg.TrimEvery, cfg.OwnerRecheck = 0, 0, 0
	cfg.PauseLimit = 20 * time.Second
	cfg.StopTimeout = 2 * time.Second
	cfg.RetryFor, cfg.API.PublishDeadline = 500*time.Millisecond, 3*time.Second
	cfg.Namespaces = make(map[string]namespace.Namespace)
	for _, d := range []namespace.Durability{namespace.Committed, namespace.None} {
		ns := namespace.Default()
		ns.Durability = d
		cfg.Namespaces[d.String()] = ns
	}
	m := &member{gate: &gatedStore{Store: g.store}, members: newView(id, int64(g.started)), ended: make(chan struct{})}
	var err error
	if m.bus, err = nats.Connect(g.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond)); err != nil {
		g.t.Fatal(err)
	}
	bc := bus.Default()
	bc.Prefix = "spillway"
	b, err := bus.New(bc, m.bus)
	if err != nil {
		g.t.Fatal(err)
	}
	r, err := router.New(cfg, router.Deps{Store: m.gate, Bus: b, Members: m.members, Peers: alone{}})
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	if err := r.Listen(ctx); err != nil {
		g.t.Fatal(err)
	}
	var parts sync.WaitGroup
	busCtx, busEnd := context.WithCancel(context.Background())
	// Both end with the member, the bus last; ended tells it.
	parts.Go(func() {
		defer busEnd()
		if err := r.Run(ctx); err != nil {
			g.t.Errorf("router %s: %v", id, err)
		}
	})
	parts.Go(func() { _ = b.Run(busCtx) })
	go func() { // waits for both
		parts.Wait()
		close(m.ended)
	}()
	if m.conn, err = grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(m.stop)
	g.eventually(id+" is ready", func() string { return strconv.FormatBool(r.Ready()) }, "true")
	return m
}

// stop ends the router in order.
func (m *member) stop() {
	m.once.Do(func() {
		m.conn.Close()
		m.cancel()
		<-m.ended
		m.bus.Close()
	})
}

// kill takes everything from the router at once: what it does from here on reaches
// nobody.
func (m *member) kill() {
	m.gate.kill()
	m.bus.Close()
	m.stop()
}

// alone is a router without others.
type alone struct{}

func (alone) Conn(*presence.Member) (*grpc.ClientConn, error) { return nil, errCut }
func (alone) Down(*presence.Member) bool                      { return true }

// view is a membership that gives everything to one router.
type view struct {
	mu       sync.Mutex
	snapshot *presence.Snapshot
	changed  chan struct{}
	joined   chan struct{}
}

func newView(id string, revision int64) *view {
	v := &view{changed: make(chan struct{}), joined: make(chan struct{})}
	close(v.joined)
	v.snapshot = presence.NewSnapshot([]*presence.Member{{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING}}, revision)
	return v
}

func (v *view) Snapshot() *presence.Snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.snapshot
}

func (v *view) set(s *presence.Snapshot) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.snapshot = s
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *view) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

func (v *view) Joined() <-chan struct{}                    { return v.joined }
func (v *view) Incarnation() uint64                        { return 0 }
func (v *view) LeaseLosses() uint64                        { return 0 }
func (v *view) SetState(gatewayv1.State)                   {}
func (v *view) LastHeard(presence.Key) time.Time           { return time.Time{} }
func (v *view) Silent(presence.Key) bool                   { return false }
func (v *view) Figures() map[presence.Key]*presence.Figure { return nil }

var errCut = errors.New("cut off by the test")

// gatedStore is one router's way to the store.
type gatedStore struct {
	history.Store
	mu     sync.Mutex
	killed bool
}

func (s *gatedStore) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = true
}

func (s *gatedStore) pass() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.killed {
		return errCut
	}
	return nil
}

func (s *gatedStore) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	if err := s.pass(); err != nil {
		return nil, err
	}
	return s.Store.Append(ctx, runs)
}

func (s *gatedStore) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	if err := s.pass(); err != nil {
		return nil, err
	}
	return s.Store.Heads(ctx, q)
}

func (s *gatedStore) Renew(ctx context.Context, r []history.Renewal) ([]history.Head, error) {
	if err := s.pass(); err != nil {
		return nil, err
	}
	return s.Store.Renew(ctx, r)
}

// fileStore is SQLite in a file that can be cut off and set back.
type fileStore struct {
	t           *testing.T
	file, saved string

	mu   sync.RWMutex
	db   history.Store // guarded by mu
	away bool          // guarded by mu
}

func newFileStore(t *testing.T) *fileStore {
	dir := t.TempDir()
	s := &fileStore{t: t, file: filepath.Join(dir, "history.db"), saved: filepath.Join(dir, "saved.db")}
	s.open()
	t.Cleanup(func() { _ = s.db.Close() })
	return s
}

func (s *fileStore) open() {
	cfg := sqlite.Default()
	cfg.Path, cfg.Synchronous = s.file, sqlite.Normal
	db, err := sqlite.Open(context.Background(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.db = db
}

func (s *fileStore) save()    { s.exchange(s.file, s.saved) }
func (s *fileStore) restore() { s.exchange(s.saved, s.file) }

// exchange copies the closed database, its log too, over another.
func (s *fileStore) exchange(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.db.Close(); err != nil {
		s.t.Fatal(err)
	}
	for _, part := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(to + part)
		if data, err := os.ReadFile(from + part); err == nil {
			if err := os.WriteFile(to+part, data, 0o600); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.open()
}

func (s *fileStore) cut(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// use runs a call unless the store is away.
func use[T any](s *fileStore, call func(history.Store) (T, error)) (T, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.away {
		var none T
		return none, errCut
	}
	return call(s.db)
}

func (s *fileStore) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	return use(s, func(db history.Store) ([]history.Outcome, error) { return db.Append(ctx, runs) })
}

func (s *fileStore) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	return use(s, func(db history.Store) ([]history.Head, error) { return db.Heads(ctx, q) })
}

func (s *fileStore) Renew(ctx context.Context, r []history.Renewal) ([]history.Head, error) {
	return use(s, func(db history.Store) ([]history.Head, error) { return db.Renew(ctx, r) })
}

func (s *fileStore) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	return use(s, func(db history.Store) ([]history.Page, error) { return db.Read(ctx, r) })
}

func (s *fileStore) Trim(ctx context.Context, r []history.Retention, keys time.Duration, limit int) (int, error) {
	return use(s, func(db history.Store) (int, error) { return db.Trim(ctx, r, keys, limit) })
}

func (s *fileStore) Forget(ctx context.Context, idle time.Duration, limit int) (int, error) {
	return use(s, func(db history.Store) (int, error) { return db.Forget(ctx, idle, limit) })
}

func (s *fileStore) Keep(ctx context.Context, channels []string) error {
	_, err := use(s, func(db history.Store) (bool, error) { return true, db.Keep(ctx, channels) })
	return err
}

func (s *fileStore) Close() error { return nil }
