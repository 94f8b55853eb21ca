package router

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence/peers"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
)

// pair starts two routers that know each other.
func pair(t *testing.T) (a, b *node, shared *memory.Store) {
	shared = memory.New(memory.Default())
	a, b = start(t, shared, nil), start(t, shared, func(c *Config) { c.ID = "r2" })
	view := snapshotOf(2, routerMember("r1", a.Addr()), routerMember("r2", b.Addr()))
	a.members.set(view)
	b.members.set(view)
	return a, b, shared
}

// ownedBy finds a channel of a namespace that a router owns.
func ownedBy(n *node, namespace string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s:%d", namespace, i); n.views.Owned(name) {
			return name
		}
	}
}

// A publish that reaches the wrong router is numbered by the owner alone.
func TestPublishIsForwardedToTheOwner(t *testing.T) {
	a, b, _ := pair(t)
	for _, namespace := range []string{"chat", "brief"} {
		channel := ownedBy(b, namespace)
		for i := 1; i <= 3; i++ {
			if placed := a.publish1(channel, fmt.Sprint(i), ""); placed.Offset != uint64(i) {
				t.Errorf("%s: placed at %v", channel, placed)
			}
		}
		if got := len(b.bus.offsets(channel)); got != 3 || len(a.bus.offsets(channel)) != 0 {
			t.Errorf("%s: the owner sent %d events", channel, got)
		}
		r, err := a.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: channel, Limit: 2, Reverse: true})
		if err != nil || len(r.Events) != 2 || r.Head != 3 {
			t.Errorf("%s: history at the other router: %v %v", channel, r, err)
		}
	}
}

// The owner is gone and the view does not know yet: what has a key is served
// here at once, the rest is told that nothing is known.
func TestPublishWithAKeySurvivesADeadOwner(t *testing.T) {
	n := start(t, nil, nil)
	n.members.set(snapshotOf(2, routerMember("r1", n.Addr()), routerMember("gone", "127.0.0.1:1")))
	var channel string
	for i := 0; ; i++ {
		if channel = fmt.Sprintf("chat:%d", i); !n.views.Owned(channel) {
			break
		}
	}
	if placed := n.publish1(channel, `1`, "k1"); placed.Offset != 1 {
		t.Errorf("with a key: %v", placed)
	}
	// The connection is known to be down from then on: nothing was sent, so what
	// has no key is served here as well.
	eventually(t, "a publish without a key is served", func() bool {
		_, err := n.publishErr(channel, `2`, "")
		return err == nil
	})
	if _, err := n.publishErr(strings.Replace(channel, "chat", "brief", 1), `1`, "k"); err != nil && status.Code(err) != codes.Unavailable {
		t.Errorf("without a store: %v", err)
	}
}

// A forwarded call that comes to one who does not own the channel is passed on: the
// sender's view was older.
func TestForwardedCallIsPassedOnToTheOwner(t *testing.T) {
	a, b, _ := pair(t)
	channel := ownedBy(b, "chat")
	r, err := a.edge.Submit(testContext(t), &gatewayv1.SubmitRequest{Forwarded: true, Submissions: []*gatewayv1.Submission{{Channel: channel, Data: []byte(`1`)}}})
	if err != nil || r.Results[0].Code != 0 || len(b.bus.offsets(channel)) != 1 {
		t.Errorf("%v %v", r, err)
	}
	if placed := b.publish1(channel, `2`, ""); placed.Offset != 2 {
		t.Errorf("the owner goes on at %v", placed)
	}
}

func TestKeysOpenWhatTheyMay(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		c.API.Keys = []api.Key{
			{Name: "backend", Secret: strings.Repeat("p", 20), Rights: []api.Right{api.RightPublish}},
			{Name: "edges", Secret: strings.Repeat("e", 20), Rights: []api.Right{api.RightEdge, api.RightRead}},
		}
	})
	call := func(secret string) (publish, history, admin, edge codes.Code) {
		ctx := testContext(t)
		if secret != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
		}
		_, err1 := n.pub.Publish(ctx, &routerv1.PublishRequest{Publication: event("chat:a", `1`, "")})
		_, err2 := n.hist.ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: "chat:a"})
		_, err3 := routerv1.NewAdminServiceClient(n.conn).ListNodes(ctx, &routerv1.ListNodesRequest{})
		_, err4 := n.edge.Submit(ctx, &gatewayv1.SubmitRequest{})
		return status.Code(err1), status.Code(err2), status.Code(err3), status.Code(err4)
	}
	for secret, want := range map[string]string{
		"":                      "Unauthenticated Unauthenticated Unauthenticated Unauthenticated",
		strings.Repeat("x", 20): "Unauthenticated Unauthenticated Unauthenticated Unauthenticated",
		strings.Repeat("p", 20): "OK PermissionDenied PermissionDenied PermissionDenied",
		strings.Repeat("e", 20): "PermissionDenied OK PermissionDenied OK",
	} {
		a, b, c, d := call(secret)
		if got := fmt.Sprint(a, b, c, d); got != want {
			t.Errorf("key %.2q: %s, want %s", secret, got, want)
		}
	}
	stream, err := n.edge.Sync(testContext(t))
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream without a key: %v", err)
	}
	h, err := healthv1.NewHealthClient(n.conn).Check(testContext(t), &healthv1.HealthCheckRequest{})
	if err != nil || h.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health needs no key: %v %v", h, err)
	}
}

func TestWithoutKeysOnlyLoopbackIsServed(t *testing.T) {
	cfg := Default()
	cfg.ID, cfg.API.Listen = "r1", "0.0.0.0:8390"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("Validate: %v", err)
	}
	cfg.API.Keys = []api.Key{{Name: "k", Secret: strings.Repeat("s", 16), Rights: []api.Right{api.RightPublish}}}
	if err := cfg.Validate(); err != nil {
		t.Errorf("with keys: %v", err)
	}
}

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	cfg := Default()
	cfg.Committers, cfg.QueueBytes = 0, -1
	cfg.Namespaces = map[string]namespace.Namespace{"chat": {Durability: namespace.None + 1}, "a:b": {}, "": {}}
	cfg.API.Keys = []api.Key{{Name: "k", Secret: "short", Rights: []api.Right{"fly"}}}
	err := cfg.Validate()
	for _, want := range []string{"id", "committers", "queue_bytes", "namespaces.chat.durability", "namespaces.a:b", `"default"`, "16 bytes", "fly"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q in: %v", want, err)
		}
	}
	if d := Default(); func() error { d.ID = "r1"; return d.Validate() }() != nil {
		t.Errorf("Default with an id must do: %v", d.Validate())
	}
}

// A stop in order: not ready, the others are told, streams end, calls in flight
// are answered.
func TestStopIsInOrder(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := testConfig("r1")
	cfg.Registry = registry
	members := newMembers(snapshotOf(1, routerMember("r1", "")))
	p := peers.New(peers.Config{})
	defer p.Close()
	store := &wobbly{Store: memory.New(memory.Default())}
	r, err := New(cfg, Deps{Store: store, Bus: &recorder{}, Members: members, Peers: p})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // waited for below
	eventually(t, "ready", r.Ready)
	ops := r.OpsHandler(registry)
	get := func(path string) int {
		w := httptest.NewRecorder()
		ops.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	if get("/readyz") != 200 || get("/healthz") != 200 || get("/metrics") != 200 {
		t.Error("ops of a ready router")
	}
	conn, err := grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := gatewayv1.NewEdgeServiceClient(conn).Sync(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}, 10), make(chan struct{})
	store.onAppend(func(_ context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		entered <- struct{}{}
		<-release
		return next()
	})
	inFlight := make(chan error, 1)
	go func() { // ends with the publish
		_, err := routerv1.NewPublisherServiceClient(conn).Publish(testContext(t), &routerv1.PublishRequest{Publication: event("chat:a", `1`, "")})
		inFlight <- err
	}()
	<-entered
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream of an edge ended with %v", err)
	}
	if r.Ready() || get("/readyz") != 503 || get("/healthz") != 200 {
		t.Error("ops of a leaving router")
	}
	close(release)
	if err := <-inFlight; err != nil {
		t.Errorf("the publish in flight: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := fmt.Sprint(members.states); got != "[STATE_DRAINING STATE_LEFT]" {
		t.Errorf("states %s", got)
	}
}
