package presence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/etcd"
	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	busboard "github.com/spillway-io/spillway/presence/nats"
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
	stop func() error // leaves in order
	kill func()       // as if the process died
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
	c := presence.New(presence.Config{Self: &presence.Member{Id: id, Role: role, Address: "127.0.0.1:1"}},
		etcd.NewRegistry(client, "/spillway/test", ttl, nil), busboard.NewBoard(conn, "test", "eu", nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }() // ended by stop or kill, which wait for it
	n := &node{Cluster: c}
	ended := false
	n.stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		err := <-done
		conn.Close()
		client.Close()
		return err
	}
	n.kill = func() {
		client.Close() // no farewell reaches etcd
		conn.Close()
		n.stop()
	}
	in.t.Cleanup(func() { n.stop() })
	return n
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

func TestMembersComeAndGo(t *testing.T) {
	in := startInfra(t)
	r1 := in.node(gatewayv1.Role_ROLE_ROUTER, "r1")
	e1 := in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	e2 := in.node(gatewayv1.Role_ROLE_EDGE, "e2")
	eventually(t, 10*time.Second, "all three seen", sees(r1, "e1 e2 r1 "))
	<-e1.Joined()

	if err := e1.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "who deregistered is gone at once", sees(r1, "e2 r1 "))

	e2.kill()
	eventually(t, ttl+6*time.Second, "who died is gone after lease and silence", sees(r1, "r1 "))
}

func TestNobodyLeavesWhileEtcdAndBusAreAway(t *testing.T) {
	in := startInfra(t)
	nodes := []*node{in.node(gatewayv1.Role_ROLE_ROUTER, "r1"), in.node(gatewayv1.Role_ROLE_ROUTER, "r2"), in.node(gatewayv1.Role_ROLE_EDGE, "e1")}
	for _, n := range nodes {
		eventually(t, 10*time.Second, "all seen", sees(n, "e1 r1 r2 "))
	}
	revision := nodes[2].Snapshot().Revision()
	in.stop()
	watch := time.NewTimer(3 * ttl)
	changed := nodes[2].Changed()
	select {
	case <-changed:
		t.Errorf("the view changed: %s", ids(nodes[2].Snapshot()))
	case <-watch.C:
	}
	in.start()
	// Back again: a state change must arrive, and nothing else may have.
	nodes[0].SetState(gatewayv1.State_STATE_DRAINING)
	eventually(t, 15*time.Second, "news flows again", func() bool {
		for _, n := range nodes {
			if got := ids(n.Snapshot()); got != "e1 r1 r2 " {
				t.Fatalf("somebody left: %s", got)
			}
		}
		return len(nodes[2].Snapshot().Routers()) == 1
	})
	for _, n := range nodes {
		if n.LeaseLosses() != 0 {
			t.Errorf("%s lost its lease %d times", n.ID(), n.LeaseLosses())
		}
	}
	if nodes[2].Snapshot().Revision() <= revision {
		t.Error("ownership changed without a new revision")
	}
}

func TestASecondMemberWithTheIDIsRefused(t *testing.T) {
	in := startInfra(t)
	e1 := in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	<-e1.Joined()
	conn, err := nats.Connect(in.nats.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{in.etcd.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	twin := presence.New(presence.Config{Self: &presence.Member{Id: "e1", Role: gatewayv1.Role_ROLE_EDGE}},
		etcd.NewRegistry(client, "/spillway/test", ttl, nil), busboard.NewBoard(conn, "test", "eu", nil))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := twin.Run(ctx); !errors.Is(err, presence.ErrDuplicate) {
		t.Errorf("a twin of a live member ended with: %v", err)
	}
	if ids(e1.Snapshot()) != "e1 " || e1.LeaseLosses() != 0 {
		t.Error("the first one was harmed")
	}
}

func TestARegistryRestoredFromNothingIsFilledAgain(t *testing.T) {
	in := startInfra(t)
	r1, e1 := in.node(gatewayv1.Role_ROLE_ROUTER, "r1"), in.node(gatewayv1.Role_ROLE_EDGE, "e1")
	eventually(t, 10*time.Second, "both seen", sees(r1, "e1 r1 "))
	in.stop()
	in.dir = t.TempDir()
	in.start()
	eventually(t, 20*time.Second, "both have new leases", func() bool {
		if got := ids(r1.Snapshot()); got != "e1 r1 " {
			t.Fatalf("somebody left: %s", got)
		}
		return r1.LeaseLosses() == 1 && e1.LeaseLosses() == 1
	})
	e1.SetState(gatewayv1.State_STATE_DRAINING)
	eventually(t, 20*time.Second, "news flows again", func() bool { return len(r1.Snapshot().Edges()) == 0 })
}
