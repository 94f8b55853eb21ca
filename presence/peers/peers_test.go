package peers

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a membership view that the test changes, and real routers.
type world struct {
	mu       sync.Mutex // guards all below
	snapshot *presence.Snapshot
	changed  chan struct{}
}

func newWorld(members ...*presence.Member) *world {
	return &world{snapshot: presence.NewSnapshot(members, 1), changed: make(chan struct{})}
}

func (w *world) Snapshot() *presence.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snapshot
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) set(members ...*presence.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshot = presence.NewSnapshot(members, w.snapshot.Revision()+1)
	close(w.changed)
	w.changed = make(chan struct{})
}

func router(id, address string) *presence.Member {
	return &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, Address: address, Incarnation: 1, State: gatewayv1.State_STATE_SERVING}
}

// serve runs a gRPC server with the health service; address "" picks one.
func serve(t *testing.T, address string) (string, func()) {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, health.NewServer())
	done := make(chan struct{})
	// Ended and waited for by stop.
	go func() { defer close(done); _ = s.Serve(ln) }()
	stop := sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return ln.Addr().String(), stop
}

func run(t *testing.T, cfg Config) *Peers {
	t.Helper()
	p := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	// Ended and waited for when the test ends.
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := p.Conn(router("r1", "127.0.0.1:1")); !errors.Is(err, ErrClosed) {
			t.Errorf("a connection after the end: %v", err)
		}
	})
	return p
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}

func (p *Peers) call(t *testing.T, m *presence.Member) error {
	t.Helper()
	conn, err := p.Conn(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

func TestRoutersAreDialledAheadAndLeftWhenTheyGo(t *testing.T) {
	a1, _ := serve(t, "")
	a2, _ := serve(t, "")
	r1, r2, me := router("r1", a1), router("r2", a2), router("me", "127.0.0.1:1")
	w := newWorld(r1, me)
	p := run(t, Config{View: w, Self: "me"})
	eventually(t, "dialled before anybody asked", func() bool { return p.State(r1) == connectivity.Ready })
	if p.State(me) != connectivity.Idle {
		t.Error("a router dials itself")
	}
	w.set(r1, r2, me)
	eventually(t, "the new one too", func() bool { return p.State(r2) == connectivity.Ready })
	conn, err := p.Conn(r1)
	if err != nil {
		t.Fatal(err)
	}
	w.set(r2, me)
	eventually(t, "closed when gone", func() bool { return conn.GetState() == connectivity.Shutdown })
	if p.State(r1) != connectivity.Idle {
		t.Error("a connection to who has gone")
	}
	// A router that drains still has its connection: it answers until it has left.
	draining := router("r2", a2)
	draining.State = gatewayv1.State_STATE_DRAINING
	w.set(draining, me)
	if err := p.call(t, draining); err != nil {
		t.Error(err)
	}
}

func TestARouterThatIsDownIsKnownBeforeACallAndFoundAgain(t *testing.T) {
	address, stop := serve(t, "")
	r1 := router("r1", address)
	p := run(t, Config{View: newWorld(r1)})
	if err := p.call(t, r1); err != nil {
		t.Fatal(err)
	}
	stop()
	eventually(t, "known to be down", func() bool { return p.Down(r1) })
	if err := p.call(t, r1); status.Code(err) != codes.Unavailable {
		t.Errorf("a call to who is down: %v", err)
	}
	serve(t, address)
	eventually(t, "found again", func() bool { return p.State(r1) == connectivity.Ready })
	if err := p.call(t, r1); err != nil {
		t.Error(err)
	}
}

func TestANewAddressIsANewConnection(t *testing.T) {
	a1, _ := serve(t, "")
	a2, _ := serve(t, "")
	p := New(Config{})
	defer p.Close()
	before, err := p.Conn(router("r1", a1))
	if err != nil {
		t.Fatal(err)
	}
	again := router("r1", a1)
	again.Incarnation = 2
	if conn, err := p.Conn(again); err != nil || conn != before {
		t.Errorf("a restart at the same address: %v, %v", conn, err)
	}
	if err := p.call(t, router("r1", a2)); err != nil {
		t.Error(err)
	}
	if before.GetState() != connectivity.Shutdown {
		t.Error("the connection to the old address is open")
	}
}

func TestTheOwnerIsPickedFirst(t *testing.T) {
	w := newWorld(router("r1", ""), router("r2", ""), router("r3", ""))
	p := New(Config{View: w})
	for _, channel := range []string{"a", "b", "chat:room-7"} {
		picked := p.Pick(channel)
		if len(picked) != 3 || picked[0] != w.Snapshot().Owner(channel) || picked[1] == picked[0] || picked[2] == picked[1] {
			t.Errorf("%s: %v", channel, picked)
		}
	}
	if New(Config{}).Pick("a") != nil {
		t.Error("picked from no view")
	}
}
