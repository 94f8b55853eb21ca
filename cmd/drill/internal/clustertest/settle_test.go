package clustertest

import (
	"context"
	"encoding/json"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/client"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// An edge is killed under forty clients, which come back by ticket through what a
// balancer would be: every router tells one incident, with whom it displaced and that
// all are back and caught up; so does the command.
func TestAKilledEdgeIsOneIncidentOnEveryRouter(t *testing.T) {
	const clients = 40
	c := newCluster(t)
	edges := c.Edges()
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	balancer := client.WithDialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		if conn, err := new(net.Dialer).DialContext(ctx, network, edges[0].Addr()); err == nil {
			return conn, nil
		}
		return new(net.Dialer).DialContext(ctx, network, edges[1].Addr())
	})
	for range clients {
		cl, err := client.New(edges[0].URL(), balancer)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cl.Close() })
		if _, err := cl.Subscribe("chat:settle", client.Handler{}); err != nil {
			t.Fatal(err)
		}
		if err := cl.Connect(ctx); err != nil {
			t.Fatal(err)
		}
	}
	routers := map[string]routerv1.AdminServiceClient{}
	for _, router := range []string{"router-1", "router-2"} {
		routers[router] = routerv1.NewAdminServiceClient(c.dial(router))
		Eventually(t, 10*time.Second, router+" has heard of the clients", func() bool { return conns(ctx, routers[router], edges[0].Name) == clients })
	}
	c.kill(edges[0].Process)
	for name, admin := range routers {
		var last []*routerv1.Incident
		settled := func() bool {
			answer, err := admin.ListIncidents(ctx, &routerv1.ListIncidentsRequest{})
			if err != nil {
				return false
			}
			last = answer.Incidents
			return len(last) == 1 && last[0].SettledMs != 0
		}
		Eventually(t, 60*time.Second, name+" tells one incident that has settled", settled)
		if len(last[0].Causes) != 1 {
			t.Fatalf("%s tells %v", name, last)
		}
		cause := last[0].Causes[0]
		if cause.Kind != "lost" || cause.Id != edges[0].Name || cause.Displaced != clients || cause.Back != clients || cause.CaughtUp != clients {
			t.Errorf("%s tells %v", name, cause)
		}
		// The last ones, up to five a second, come when the rate is the usual one again.
		if after := last[0].SettledMs - last[0].StartMs; last[0].Admitted < clients-5 || after > 20_000 || last[0].P99Ms == 0 {
			t.Errorf("%s tells %v", name, last[0])
		}
		t.Logf("%s: settled after %d ms, p50 %d, p95 %d, p99 %d", name, last[0].SettledMs-last[0].StartMs, last[0].P50Ms, last[0].P95Ms, last[0].P99Ms)
	}
	out, err := exec.CommandContext(ctx, binary, "settle", "--json", "--server", c.Routers()[0].Addr()).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var incident struct {
		Type   string
		Causes []struct{ ID string }
	}
	if len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &incident) != nil || incident.Type != "incident" || incident.Causes[0].ID != edges[0].Name {
		t.Errorf("the command prints %s", out)
	}

	// A router that comes new is told by the edges what happened before it came.
	router := c.Routers()[1]
	if err := router.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 60*time.Second, "the new router knows who came back", func() bool {
		answer, err := routers["router-2"].GetArrivals(ctx, &routerv1.GetArrivalsRequest{})
		back := uint32(0)
		for _, w := range answer.GetWindows() {
			back += w.Resumed
		}
		return err == nil && back == clients // the dead edge takes its own arrivals with it
	})
}

// An edge hands its clients over within less than the time between two load figures,
// and ends: all whom it told are counted.
func TestADrainedEdgeCountsAllWhomItTold(t *testing.T) {
	const clients = 40
	c := newCluster(t)
	edges := c.Edges()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for range clients {
		cl, err := client.New(edges[0].URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cl.Close() })
		if err := cl.Connect(ctx); err != nil {
			t.Fatal(err)
		}
	}
	admin := routerv1.NewAdminServiceClient(c.dial("router-1"))
	Eventually(t, 10*time.Second, "the router has heard of the clients", func() bool { return conns(ctx, admin, edges[0].Name) == clients })
	if err := edges[0].Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	var last []*routerv1.Incident
	Eventually(t, 20*time.Second, "one incident with all clients", func() bool {
		answer, err := admin.ListIncidents(ctx, &routerv1.ListIncidentsRequest{})
		if err != nil {
			return false
		}
		last = answer.Incidents
		return len(last) == 1 && len(last[0].Causes) == 1 && last[0].Causes[0].Displaced >= clients
	})
	if cause := last[0].Causes[0]; cause.Kind != "operation" || cause.Displaced != clients {
		t.Errorf("the router tells %v", cause)
	}
}

func conns(ctx context.Context, admin routerv1.AdminServiceClient, node string) uint64 {
	answer, err := admin.ListNodes(ctx, &routerv1.ListNodesRequest{})
	if err != nil {
		return 0
	}
	for _, n := range answer.Nodes {
		if n.Id == node {
			return n.Conns
		}
	}
	return 0
}
