// Package repairtest breaks the ways between routers and edges and asks what became of
// the events: everything acked is delivered, or the loss is announced, and nobody pays
// for it who need not.
//
// Nothing in it is simulated but what a test says: routers, edges, NATS, etcd and gRPC
// are real, and a router that is killed or measured is a process of its own.
package repairtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/peers"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// childEnv makes this program a router: its value is the SQLite file.
const childEnv = "SPILLWAY_REPAIRTEST_ROUTER"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := runRouter(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// alone is the membership of a router without others.
type alone struct {
	snapshot *presence.Snapshot
	never    chan struct{}
	joined   chan struct{}
}

func (a *alone) Snapshot() *presence.Snapshot               { return a.snapshot }
func (a *alone) Changed() <-chan struct{}                   { return a.never }
func (a *alone) Joined() <-chan struct{}                    { return a.joined }
func (a *alone) LeaseLosses() uint64                        { return 0 }
func (a *alone) SetState(gatewayv1.State)                   {}
func (a *alone) LastHeard(presence.Key) time.Time           { return time.Now() }
func (a *alone) Silent(presence.Key) bool                   { return false }
func (a *alone) Incarnation() uint64                        { return 0 }
func (a *alone) Figures() map[presence.Key]*presence.Figure { return nil }

// noBus loses everything.
type noBus struct{}

func (noBus) Publish(*gatewayv1.Envelope) {}

func routerMember(address string) *presence.Member {
	return &presence.Member{Id: "r1", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING, Address: address}
}

// runRouter is the child: a router over SQLite whose bus is cut. It says its address,
// then its metrics for each line that it is sent, and ends with its input.
func runRouter(path string) error {
	sc := sqlite.Default()
	sc.Path = path
	store, err := sqlite.Open(context.Background(), sc)
	if err != nil {
		return err
	}
	defer store.Close()
	registry := prometheus.NewRegistry()
	cfg := router.Default()
	cfg.ID, cfg.API.Listen, cfg.OpenNamespaces, cfg.Registry = "r1", "127.0.0.1:0", true, registry
	cfg.OwnerRecheck = 0 // it has been the owner for long
	members := &alone{
		snapshot: presence.NewSnapshot([]*presence.Member{routerMember("")}, 1), never: make(chan struct{}), joined: make(chan struct{}),
	}
	close(members.joined)
	others := peers.New(peers.Config{})
	defer others.Close()
	r, err := router.New(cfg, router.Deps{Store: store, Bus: noBus{}, Members: members, Peers: others})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := r.Listen(ctx); err != nil {
		return err
	}
	go func() { // ends with the input, and ends the router
		defer cancel()
		fmt.Println(r.Addr())
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			text, err := json.Marshal(gather(registry))
			if err != nil {
				return
			}
			fmt.Println(string(text))
		}
	}()
	return r.Run(ctx)
}

// gather is every counter and gauge by name and labels.
func gather(registry *prometheus.Registry) map[string]float64 {
	all := make(map[string]float64)
	families, _ := registry.Gather()
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "," + l.GetValue()
			}
			if c := m.GetCounter(); c != nil {
				all[name] = c.GetValue()
			} else if g := m.GetGauge(); g != nil {
				all[name] = g.GetValue()
			}
		}
	}
	return all
}

// child is a router as a process of its own.
type child struct {
	*process.Process
	t     testing.TB
	lines chan []byte
	addr  string
	conn  *grpc.ClientConn
}

func startChild(t testing.TB) *child {
	t.Helper()
	c := &child{t: t, lines: make(chan []byte, 4)}
	command, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	c.Process, err = process.Start(process.Config{
		Name: "router", Command: command, Env: []string{childEnv + "=" + t.TempDir() + "/history.db"},
		Line: func(line []byte) { c.lines <- bytes.Clone(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	c.addr = string(c.line())
	if c.conn, err = grpc.NewClient(c.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	return c
}

func (c *child) line() []byte {
	c.t.Helper()
	select {
	case line := <-c.lines:
		return line
	case <-c.Done():
		c.t.Fatal("the router has ended")
		return nil
	}
}

// metrics asks for all counters and gauges.
func (c *child) metrics() map[string]float64 {
	c.t.Helper()
	all := make(map[string]float64)
	if err := c.Tell("metrics"); err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(c.line(), &all); err != nil {
		c.t.Fatal(err)
	}
	return all
}

// resident is its memory in MiB, now and at its highest.
func (c *child) resident() (now, peak float64) {
	a, b := c.Resident()
	return float64(a) / (1 << 20), float64(b) / (1 << 20)
}
