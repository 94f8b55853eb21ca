package presence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/etcd"
	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	busnats "github.com/spillway-io/spillway/presence/nats"
	"github.com/spillway-io/spillway/presence/nats/natsserver"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func TestMain(m *testing.M) {
	// etcd's embedded server leaves a few of its own behind for moments.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile.func1"))
}

const ttl = 2 * time.Second

// infra is a real etcd and a real NATS that can be stopped and started again.
type infra struct {
	t        *testing.T
	dir      string
	etcd     *etcdserver.Server
	nats     *natsserver.Server
	etcdPort int
	natsPort int
}

func startInfra(t *testing.T) *infra {
	in := &infra{t: t, dir: t.TempDir()}
	in.start()
	t.Cleanup(in.stop)
	return in
}

func (in *infra) start() {
	in.t.Helper()
	var err error
	if in.etcd, err = etcdserver.Start(in.t.Context(), etcdserver.Config{Dir: in.dir, Port: in.etcdPort}); err != nil {
		in.t.Fatal(err)
	}
	if in.nats, err = natsserver.Start(in.t.Context(), in.natsPort); err != nil {
		in.t.Fatal(err)
	}
	in.etcdPort, in.natsPort = in.etcd.Port(), in.nats.Port()
}

func (in *infra) stop() {
	if in.etcd != nil {
		in.etcd.Close()
		in.nats.Close()
		in.etcd, in.nats = nil, nil
	}
}

// node is one member with connections of its own.
type node struct {
	*presence.Cluster
	metrics *prometheus.Registry
	done    chan struct{} // closed when Run has returned
	err     error         // what it returned, then
	stop    func() error  // leaves in order
	kill    func()        // as if the process died
}

func (in *infra) node(role gatewayv1.Role, id string) *node {
	in.t.Helper()
	client, err := etcd.NewClient(etcd.ClientConfig{Endpoints: []string{fmt.Sprintf("http://127.0.0.1:%d", in.etcdPort)}})
	if err != nil {
		in.t.Fatal(err)
	}
	conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", in.natsPort), nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		in.t.Fatal(err)
	}
	n := &node{metrics: prometheus.NewRegistry()}
	n.Cluster = presence.New(presence.Config{
		Self:     &presence.Member{Id: id, Role: role, Region: "eu", Address: "127.0.0.1:1", Capacity: 100},
		Load:     func(f *presence.Figure) { f.Conns = 7 },
		Registry: n.metrics,
	}, etcd.NewRegistry(client, "/spillway/test", ttl, nil), busnats.NewLoadFigures(conn, "test", "eu", nil))
	ctx, cancel := context.WithCancel(context.Background())
	n.done = make(chan struct{})
	// Ended by stop or kill, which wait for it.
	go func() {
		defer close(n.done)
		n.err = n.Run(ctx)
	}()
	n.stop = sync.OnceValue(func() error {
		cancel()
		<-n.done
		conn.Close()
		client.Close()
		return n.err
	})
	n.kill = func() {
		client.Close() // no farewell reaches etcd
		conn.Close()
		n.stop()
	}
	in.t.Cleanup(func() { n.stop() })
	return n
}

// count sums a metric over its labels.
func (n *node) count(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum, found := 0.0, false
	for _, f := range families {
		if f.GetName() != "spillway_presence_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := len(labels) == 0
			for _, l := range m.GetLabel() {
				match = match || slices.Contains(labels, l.GetValue())
			}
			if match {
				found = true
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	if !found {
		t.Fatalf("no metric %s %v", name, labels)
	}
	return sum
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

func ids(s *presence.Snapshot) string {
	out := ""
	for _, m := range s.Members() {
		out += m.Id + " "
	}
	return out
}

func sees(n *node, want string) func() bool {
	return func() bool { return ids(n.Snapshot()) == want }
}

// owners says who owns a few hundred channels.
func owners(s *presence.Snapshot) []string {
	var ids []string
	for i := range 300 {
		ids = append(ids, s.Owner(fmt.Sprint("chat:room-", i)).GetId())
	}
	return ids
}

func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	in := startInfra(t)
	r1 := in.node(gatewayv1.Role_ROLE_ROUTER, "r1")
	e1 := in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	e2 := in.node(gatewayv1.Role_ROLE_EDGE, "e2")
	eventually(t, 10*time.Second, "all three seen", sees(r1, "e1 e2 r1 "))
	<-e1.Joined()
	eventually(t, 5*time.Second, "figures of all three heard", func() bool { return len(r1.Figures()) == 3 })
	key := presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: "e1"}
	if f := r1.Figure(key); f.Conns != 7 || f.Capacity != 100 || f.Region != "eu" || r1.LastHeard(key).IsZero() || r1.Silent(key) || !r1.BusWorks() {
		t.Errorf("figure of e1: %v", f)
	}

	e1.SetState(gatewayv1.State_STATE_DRAINING)
	eventually(t, time.Second, "a state is told at once", func() bool { return len(r1.Snapshot().Edges()) == 1 })
	if err := e1.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "who deregistered is gone at once", sees(r1, "e2 r1 "))

	e2.kill()
	eventually(t, ttl+6*time.Second, "who died is gone after lease and silence", sees(r1, "r1 "))
	if left, silent := r1.count(t, "departures_total", "left"), r1.count(t, "departures_total", "silent"); left != 1 || silent != 1 {
		t.Errorf("departures: %v left, %v silent", left, silent)
	}
	if n := r1.count(t, "members"); n != 1 {
		t.Errorf("%v members counted", n)
	}
}

func TestNobodyLeavesWhileEtcdAndBusAreAway(t *testing.T) {
	t.Parallel()
	in := startInfra(t)
	nodes := []*node{
		in.node(gatewayv1.Role_ROLE_ROUTER, "r1"), in.node(gatewayv1.Role_ROLE_ROUTER, "r2"), in.node(gatewayv1.Role_ROLE_ROUTER, "r3"),
		in.node(gatewayv1.Role_ROLE_EDGE, "e1"), in.node(gatewayv1.Role_ROLE_EDGE, "e2"),
	}
	var snapshots []*presence.Snapshot
	for _, n := range nodes {
		eventually(t, 10*time.Second, "all seen", sees(n, "e1 e2 r1 r2 r3 "))
	}
	for _, n := range nodes {
		snapshots = append(snapshots, n.Snapshot())
	}
	own := owners(snapshots[0])
	in.stop()
	<-time.NewTimer(3 * ttl).C // the outage
	in.start()
	eventually(t, 10*time.Second, "all listed again", func() bool {
		for _, n := range nodes {
			if n.count(t, "lists_total", "reconnected") == 0 {
				return false
			}
		}
		return true
	})
	<-time.NewTimer(ttl + 3*time.Second).C // what was lost would be seen by now
	for i, n := range nodes {
		if n.Snapshot() != snapshots[i] {
			t.Errorf("%s sees a change: %s", n.ID(), ids(n.Snapshot()))
		}
		if !slices.Equal(owners(n.Snapshot()), own) {
			t.Errorf("%s gives channels to others", n.ID())
		}
		if n.LeaseLosses() != 0 {
			t.Errorf("%s lost its lease %d times", n.ID(), n.LeaseLosses())
		}
		if n.count(t, "bus_up") != 1 || n.count(t, "keepalive_failures_total") == 0 {
			t.Errorf("%s does not count what happened", n.ID())
		}
	}
	// News flows again, in both directions.
	revision := nodes[4].Snapshot().Revision()
	nodes[0].SetState(gatewayv1.State_STATE_DRAINING)
	eventually(t, 5*time.Second, "news flows again", func() bool { return len(nodes[4].Snapshot().Routers()) == 2 })
	if nodes[4].Snapshot().Revision() <= revision {
		t.Error("ownership changed without a new revision")
	}
}

func TestANodeWaitsForInfrastructure(t *testing.T) {
	t.Parallel()
	in := startInfra(t)
	in.stop()
	e1 := in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	select {
	case <-e1.done:
		t.Fatalf("gave up: %v", e1.err)
	case <-e1.Joined():
		t.Fatal("joined nothing")
	case <-time.NewTimer(2 * ttl).C:
	}
	in.start()
	eventually(t, 10*time.Second, "joined", func() bool {
		select {
		case <-e1.Joined():
			return true
		default:
			return false
		}
	})
	if e1.LeaseLosses() != 0 {
		t.Error("a lease that never was is counted as lost")
	}
}

func TestASecondMemberWithTheIDIsRefused(t *testing.T) {
	t.Parallel()
	in := startInfra(t)
	e1 := in.node(gatewayv1.Role_ROLE_EDGE, "edge-1")
	<-e1.Joined()
	router := in.node(gatewayv1.Role_ROLE_ROUTER, "edge-1") // ids are unique within a role
	<-router.Joined()
	twin := in.node(gatewayv1.Role_ROLE_EDGE, "edge-1")
	select {
	case <-twin.done:
		if err := twin.err; !errors.Is(err, presence.ErrDuplicate) || err.Error() != `membership: member id "edge-1" is already live` {
			t.Errorf("a twin of a live member ended with: %v", err)
		}
	case <-time.NewTimer(20 * time.Second).C:
		t.Error("a twin of a live member is not refused")
	}
	if e1.LeaseLosses() != 0 || e1.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: "edge-1"}) == nil {
		t.Error("the first one was harmed")
	}
}

func TestARestartAfterACrashTakesThePlaceOfTheDead(t *testing.T) {
	t.Parallel()
	in := startInfra(t)
	r1, e1 := in.node(gatewayv1.Role_ROLE_ROUTER, "r1"), in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	eventually(t, 10*time.Second, "both seen", sees(r1, "e1 r1 "))
	was := r1.Snapshot().Members()[0].Incarnation
	e1.kill()
	again := in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	eventually(t, ttl+8*time.Second, "the new process is the member", func() bool {
		m := r1.Snapshot().Members()
		return len(m) == 2 && m[0].Incarnation != was
	})
	<-again.Joined()
}

func TestARegistryRestoredFromNothingIsFilledAgain(t *testing.T) {
	t.Parallel()
	in := startInfra(t)
	r1, r2 := in.node(gatewayv1.Role_ROLE_ROUTER, "r1"), in.node(gatewayv1.Role_ROLE_ROUTER, "r2")
	e1, e2 := in.node(gatewayv1.Role_ROLE_EDGE, "e1"), in.node(gatewayv1.Role_ROLE_EDGE, "e2")
	nodes := []*node{r1, r2, e1, e2}
	for _, n := range nodes {
		eventually(t, 10*time.Second, "all seen", sees(n, "e1 e2 r1 r2 "))
	}
	snapshot := r1.Snapshot()
	in.stop()
	in.dir = t.TempDir()
	in.start()
	eventually(t, 20*time.Second, "all have new leases", func() bool {
		for _, n := range nodes {
			if got := ids(n.Snapshot()); got != "e1 e2 r1 r2 " {
				t.Fatalf("somebody left: %s", got)
			}
			if n.LeaseLosses() != 1 {
				return false
			}
		}
		return true
	})
	e1.SetState(gatewayv1.State_STATE_DRAINING)
	eventually(t, 20*time.Second, "news flows again", func() bool { return len(r1.Snapshot().Edges()) == 1 })
	if r1.Snapshot().Revision() != snapshot.Revision() {
		t.Error("routers count as changed")
	}
	r2.SetState(gatewayv1.State_STATE_DRAINING)
	eventually(t, 20*time.Second, "ownership moves again", func() bool { return len(r1.Snapshot().Routers()) == 1 })
	if r1.Snapshot().Revision() <= snapshot.Revision() {
		t.Error("the revision went back with the registry")
	}
}

func TestABadConfigIsReportedWhole(t *testing.T) {
	c := presence.New(presence.Config{Self: &presence.Member{Id: "a/b", Region: "x\ny"}}, nil, nil)
	err := c.Run(t.Context())
	for _, want := range []string{"id: ", "role: ", "region: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if err := presence.New(presence.Default(), nil, nil).Run(t.Context()); err == nil {
		t.Error("no member is no error")
	}
}
