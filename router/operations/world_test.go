package operations

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/control/controltest"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMembers is a membership of the router r1 and of the edges that a test sets.
type fakeMembers struct {
	mu      sync.Mutex // guards below
	edges   []*presence.Member
	figures map[presence.Key]*presence.Figure
}

func (m *fakeMembers) Snapshot() *presence.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	router := &presence.Member{Id: "r1", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING}
	return presence.NewSnapshot(append([]*presence.Member{router}, m.edges...), 2)
}

func (m *fakeMembers) Figures() map[presence.Key]*presence.Figure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.figures)
}

func (m *fakeMembers) LastHeard(presence.Key) time.Time { return time.Time{} }
func (m *fakeMembers) Silent(presence.Key) bool         { return false }

// loud is a bus on which edges tell what they want.
type loud struct {
	mu    sync.Mutex // guards below
	heard func([]byte)
}

func (l *loud) Listen(ctx context.Context, _ string, heard func([]byte)) error {
	l.mu.Lock()
	l.heard = heard
	l.mu.Unlock()
	<-ctx.Done()
	return nil
}

// startService runs a Service and its gRPC server until the test ends.
func startService(t *testing.T, change func(*Config), deps Deps) (*Service, routerv1.AdminServiceClient) {
	t.Helper()
	cfg := Default()
	cfg.ID = "r1"
	if change != nil {
		change(&cfg)
	}
	s := New(cfg, deps)
	s.hooks.pause = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	run, serve := make(chan error, 1), make(chan error, 1)
	listener, server := bufconn.Listen(1<<20), grpc.NewServer()
	routerv1.RegisterAdminServiceServer(server, s)
	go func() { run <- s.Run(ctx) }()               // the cleanup ends it and waits
	go func() { serve <- server.Serve(listener) }() // the same
	conn, err := grpc.NewClient("passthrough:router", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		cancel()
		for _, end := range []chan error{run, serve} {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
	})
	return s, routerv1.NewAdminServiceClient(conn)
}

// world is the control side of a router beside edges that are only records.
type world struct {
	t       *testing.T
	service *Service
	admin   routerv1.AdminServiceClient
	members *fakeMembers
	store   *controltest.Store
	agree   *control.Control
	bus     *loud
}

func runControl(t *testing.T, c *control.Control) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }() // the cleanup ends it and waits
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func newWorld(t *testing.T, edges ...*presence.Figure) *world {
	t.Helper()
	w := &world{t: t, members: &fakeMembers{}, store: controltest.NewStore(), bus: &loud{}}
	w.agree = control.New(control.Config{Keeper: true, CheckSettings: func(yaml string) error {
		if strings.Contains(yaml, "wrong") {
			return fmt.Errorf("wrong: is no key")
		}
		return nil
	}}, w.store.Join())
	runControl(t, w.agree)
	<-w.agree.Ready()
	w.service, w.admin = startService(t, nil, Deps{Members: w.members, Control: w.agree, Messenger: w.bus})
	w.set(edges...)
	eventually(t, "the bus is heard", func() bool { w.bus.mu.Lock(); defer w.bus.mu.Unlock(); return w.bus.heard != nil })
	return w
}

// set makes edges of figures: the members are what the figures say.
func (w *world) set(edges ...*presence.Figure) {
	w.members.mu.Lock()
	defer w.members.mu.Unlock()
	w.members.edges, w.members.figures = nil, make(map[presence.Key]*presence.Figure)
	for _, f := range edges {
		f.Role, f.Incarnation = gatewayv1.Role_ROLE_EDGE, 7
		if f.State == gatewayv1.State_STATE_UNSPECIFIED {
			f.State = gatewayv1.State_STATE_SERVING
		}
		m := &presence.Member{Id: f.Id, Role: f.Role, Incarnation: 7, Region: f.Region, State: f.State, Address: "ws://" + f.Id}
		w.members.edges = append(w.members.edges, m)
		w.members.figures[presence.KeyOf(m)] = f
	}
}

func (w *world) tell(p *gatewayv1.Progress) {
	w.t.Helper()
	data, err := proto.Marshal(p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.bus.mu.Lock()
	heard := w.bus.heard
	w.bus.mu.Unlock()
	heard(data)
}

func wantCode(t *testing.T, err error, want codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %v", err, want)
	}
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-tick.C
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}
