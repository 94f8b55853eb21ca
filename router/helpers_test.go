package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/peers"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := errors.Join(pgtest.RemoveShared(), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// fakeMembers is a membership that tests move by hand.
type fakeMembers struct {
	mu       sync.Mutex
	snapshot *presence.Snapshot
	changed  chan struct{}
	joined   chan struct{}
	losses   uint64
	states   []gatewayv1.State
	figures  map[presence.Key]*presence.Figure

	incarnation uint64 // immutable
}

func newMembers(snapshot *presence.Snapshot) *fakeMembers {
	m := &fakeMembers{snapshot: snapshot, changed: make(chan struct{}), joined: make(chan struct{})}
	close(m.joined)
	return m
}

func snapshotOf(revision int64, routers ...*presence.Member) *presence.Snapshot {
	return presence.NewSnapshot(routers, revision)
}

func routerMember(id, address string) *presence.Member {
	return &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING, Address: address}
}

func (m *fakeMembers) Snapshot() *presence.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshot
}

func (m *fakeMembers) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *fakeMembers) set(s *presence.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snapshot = s
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *fakeMembers) lose() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.losses++
}

func (m *fakeMembers) Incarnation() uint64 { return m.incarnation }

func (m *fakeMembers) LeaseLosses() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.losses
}

func (m *fakeMembers) SetState(s gatewayv1.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states = append(m.states, s)
}

func (m *fakeMembers) Joined() <-chan struct{}          { return m.joined }
func (m *fakeMembers) LastHeard(presence.Key) time.Time { return time.Time{} }
func (m *fakeMembers) Silent(presence.Key) bool         { return false }

func (m *fakeMembers) Figures() map[presence.Key]*presence.Figure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.figures)
}

// recorder is a bus that remembers.
type recorder struct {
	mu        sync.Mutex
	envelopes []*gatewayv1.Envelope
	onPublish func(*gatewayv1.Envelope)
}

func (b *recorder) Publish(e *gatewayv1.Envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.envelopes = append(b.envelopes, e)
	if b.onPublish != nil {
		b.onPublish(e)
	}
}

func (b *recorder) all() []*gatewayv1.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*gatewayv1.Envelope(nil), b.envelopes...)
}

// offsets are those of all events of a channel, as they came.
func (b *recorder) offsets(channel string) []uint64 {
	var out []uint64
	for _, e := range b.all() {
		if e.Channel != channel {
			continue
		}
		for _, event := range e.Events {
			out = append(out, event.Offset)
		}
	}
	return out
}

// wobbly is a store with faults on demand.
type wobbly struct {
	history.Store
	mu     sync.Mutex
	append func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error)
	read   func(ctx context.Context, ranges []history.Range) error // before each Read; its error is that of the Read
	down   error
	calls  struct{ append, heads, read int }
	reads  [][]history.Range
}

var errAway = errors.New("the store is away")

func (w *wobbly) away(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = nil
	if on {
		w.down = errAway
	}
}

func (w *wobbly) onAppend(f func(context.Context, []history.Run, func() ([]history.Outcome, error)) ([]history.Outcome, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.append = f
}

func (w *wobbly) onRead(f func(context.Context, []history.Range) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read = f
}

func (w *wobbly) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	w.mu.Lock()
	w.calls.append++
	hook, down := w.append, w.down
	w.mu.Unlock()
	if down != nil {
		return nil, down
	}
	if hook != nil {
		return hook(ctx, runs, func() ([]history.Outcome, error) { return w.Store.Append(ctx, runs) })
	}
	return w.Store.Append(ctx, runs)
}

func (w *wobbly) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	w.mu.Lock()
	w.calls.heads++
	down := w.down
	w.mu.Unlock()
	if down != nil {
		return nil, down
	}
	return w.Store.Heads(ctx, q)
}

func (w *wobbly) Renew(ctx context.Context, r []history.Renewal) ([]history.Head, error) {
	w.mu.Lock()
	down := w.down
	w.mu.Unlock()
	if down != nil {
		return nil, down
	}
	return w.Store.Renew(ctx, r)
}

func (w *wobbly) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	w.mu.Lock()
	w.calls.read++
	w.reads = append(w.reads, append([]history.Range(nil), r...))
	hook, down := w.read, w.down
	w.mu.Unlock()
	if down != nil {
		return nil, down
	}
	if hook != nil {
		if err := hook(ctx, r); err != nil {
			return nil, err
		}
	}
	return w.Store.Read(ctx, r)
}

func (w *wobbly) counts() (append, heads, read int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls.append, w.calls.heads, w.calls.read
}

// askForTest asks as an edge would, without the stream.
func (r *Router) askForTest(a *gatewayv1.Ask, gone func() bool, reply func(*gatewayv1.Answer)) {
	r.table.Ask(&machine.Question{
		Ask: a, Namespace: r.namespaces.Of(a.Channel), MaxBytes: r.cfg.API.AnswerBytes,
		Deadline: time.Now().Add(r.cfg.API.ReadDeadline), Gone: gone, Looked: func() {}, Reply: reply,
	})
}

// node is a router under test with a client's connection to it.
type node struct {
	*Router
	t        testing.TB
	store    *wobbly
	bus      *recorder
	members  *fakeMembers
	conn     *grpc.ClientConn
	registry *prometheus.Registry // of its metrics, if the test gives none
	pub      routerv1.PublisherServiceClient
	hist     routerv1.HistoryServiceClient
	edge     gatewayv1.EdgeServiceClient
	stop     context.CancelFunc
	ended    chan struct{} // closed when Run has ended
}

func testConfig(id string) Config {
	cfg := Default()
	cfg.ID = id
	cfg.API.Listen = "127.0.0.1:0"
	cfg.OpenNamespaces = true
	cfg.Namespaces = map[string]namespace.Namespace{
		"brief":  {Durability: namespace.None, Recover: true, Publish: namespace.Everyone, Subscribe: namespace.Everyone},
		"closed": namespace.Default(),
		"cursor": {HistorySize: 10, Recover: false, Subscribe: namespace.Everyone},
	}
	cfg.Shards = 3
	cfg.OwnerRecheck = 0
	cfg.DrainDelay = 0
	cfg.TrimEvery = 0
	cfg.PauseLimit = 20 * time.Second // a busy machine is no pause
	return cfg
}

// start runs a router over a store (nil: a new one in memory) until the test ends.
func start(t testing.TB, store history.Store, change func(*Config)) *node {
	t.Helper()
	return startWith(t, store, change, func(*Deps) {})
}

func startWith(t testing.TB, store history.Store, change func(*Config), with func(*Deps)) *node {
	t.Helper()
	cfg := testConfig("r1")
	if change != nil {
		change(&cfg)
	}
	if store == nil {
		store = memory.New(memory.Default())
	}
	registry := prometheus.NewRegistry()
	if cfg.Registry == nil {
		cfg.Registry = registry
	}
	n := &node{registry: registry, t: t, store: &wobbly{Store: store}, bus: &recorder{}, ended: make(chan struct{})}
	n.members = newMembers(snapshotOf(1, routerMember(cfg.ID, "")))
	p := peers.New(peers.Config{})
	deps := Deps{Store: n.store, Bus: n.bus, Members: n.members, Peers: p}
	with(&deps)
	r, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	n.Router = r
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	if err := r.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { // the cleanup ends and waits for it
		defer close(n.ended)
		ended <- r.Run(ctx)
	}()
	n.conn, err = grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	n.pub, n.hist, n.edge = routerv1.NewPublisherServiceClient(n.conn), routerv1.NewHistoryServiceClient(n.conn), gatewayv1.NewEdgeServiceClient(n.conn)
	t.Cleanup(func() {
		n.conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		p.Close()
	})
	eventually(t, "the router is ready", r.Ready)
	return n
}

func eventually(t testing.TB, what string, is func() bool) {
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

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func event(channel, json, key string) *routerv1.Publication {
	return &routerv1.Publication{Channel: channel, Data: &routerv1.Publication_Json{Json: json}, Key: key}
}

func (n *node) publishErr(channel, json, key string) (*routerv1.Placed, error) {
	response, err := n.pub.Publish(testContext(n.t), &routerv1.PublishRequest{Publication: event(channel, json, key)})
	return response.GetPlaced(), err
}

func (n *node) publish1(channel, json, key string) *routerv1.Placed {
	n.t.Helper()
	placed, err := n.publishErr(channel, json, key)
	if err != nil {
		n.t.Fatalf("publish on %s: %v", channel, err)
	}
	return placed
}

// sync opens a stream as an edge.
func (n *node) sync() *edgeClient {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	n.t.Cleanup(cancel)
	stream, err := n.edge.Sync(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	return &edgeClient{n, stream, 0}
}

type edgeClient struct {
	n      *node
	stream grpc.BidiStreamingClient[gatewayv1.SyncRequest, gatewayv1.SyncResponse]
	id     uint64
}

// ask sends one question and waits for its answer.
func (e *edgeClient) ask(a *gatewayv1.Ask) *gatewayv1.Answer {
	e.n.t.Helper()
	answers := e.askAll(a)
	return answers[a.Id]
}

func (e *edgeClient) askAll(asks ...*gatewayv1.Ask) map[uint64]*gatewayv1.Answer {
	e.n.t.Helper()
	for _, a := range asks {
		e.id++
		a.Id = e.id
	}
	if err := e.stream.Send(&gatewayv1.SyncRequest{Edge: "e1", Asks: asks}); err != nil {
		e.n.t.Fatal(err)
	}
	answers := make(map[uint64]*gatewayv1.Answer)
	for len(answers) < len(asks) {
		response, err := e.stream.Recv()
		if err != nil {
			e.n.t.Fatalf("after %d of %d answers: %v", len(answers), len(asks), err)
		}
		for _, a := range response.Answers {
			answers[a.Id] = a
		}
	}
	return answers
}

func position(channel string, epoch, offset uint64) *gatewayv1.Ask {
	return &gatewayv1.Ask{Channel: channel, Epoch: &epoch, Offset: offset}
}

func offsetsOf(events []*gatewayv1.BusEvent) string {
	var out []uint64
	for _, e := range events {
		out = append(out, e.Offset)
	}
	return fmt.Sprint(out)
}

// stored reads all that the store has of a channel.
func (n *node) stored(channel string) []history.Event {
	n.t.Helper()
	pages, err := n.store.Store.Read(context.Background(), []history.Range{{Channel: channel, Limit: 1 << 20}})
	if err != nil {
		n.t.Fatal(err)
	}
	return pages[0].Events
}

// noPeers is for routers that are alone.
type noPeers struct{}

func (noPeers) Conn(*presence.Member) (*grpc.ClientConn, error) { return nil, errAway }
func (noPeers) Down(*presence.Member) bool                      { return true }

// texts is what the store has of a channel.
func (n *node) texts(channel string) string {
	var out []string
	for i, e := range n.stored(channel) {
		if i > 0 && e.Offset != n.stored(channel)[i-1].Offset+1 {
			n.t.Errorf("%s has a hole before %d", channel, e.Offset)
		}
		out = append(out, string(e.Data))
	}
	return strings.Join(out, " ")
}

func (n *node) wantStored(channel, want string) {
	n.t.Helper()
	if got := n.texts(channel); got != want {
		n.t.Errorf("%s has %q, want %q", channel, got, want)
	}
}

// quick lets the store's failures be tried again soon, and the end not wait for it.
func quick(c *Config) { c.StopTimeout, c.StoreTimeout = 300*time.Millisecond, 500*time.Millisecond }

// counter is the sum of a metric of the node.
func (n *node) counter(name string) float64 {
	n.t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// labelled is one of the counters of a name, by the value of its only label.
func (n *node) labelled(name, label string) float64 {
	n.t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && len(m.Label) == 1 && m.Label[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// waiting is how many publications are queued or in flight, waitingBytes their bytes.
func waiting(r *Router) int64 {
	events, _ := r.table.Waiting()
	return events
}

func waitingBytes(r *Router) int64 {
	_, bytes := r.table.Waiting()
	return bytes
}

func stopping(r *Router) bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// state is a picture of a channel that is here.
func (n *node) state(channel string) machine.State {
	n.t.Helper()
	state, _ := n.table.State(channel)
	return state
}

// turn says whose turn a channel that is here is.
func (n *node) turn(channel string) (turn machine.Turn) {
	n.table.With(channel, func(c *machine.Channel, s *machine.Step) { turn = c.Turn(s) })
	return turn
}
