// Package routernode joins the parts of a router: store, bus, membership, other
// routers and the router itself. cmd/router and `spillway router` run one, `spillway
// dev` one in its process.
//
// Life: New makes everything, waits for the store and takes the ports; Run works
// until its context ends, then leaves in order and gives everything back.
// Goroutines are those of the parts (run.Group).
package routernode

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/etcd"
	busnats "github.com/spillway-io/spillway/presence/nats"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router"
	"github.com/spillway-io/spillway/router/bus"
	"github.com/spillway-io/spillway/router/history"
)

// Options of New.
type Options struct {
	// Dev lets every namespace work, open to all clients, and turns gRPC reflection on.
	Dev bool
	Log *slog.Logger
	// Between puts something between the router and its store, for tests that break it;
	// nil: nothing. No command sets it.
	Between func(history.Store) history.Store
}

// Node is one router with all it needs.
type Node struct {
	cfg     *routerfile.File
	router  *router.Router
	made    atomic.Bool // router is set; the ops listener asks before
	ops     *run.Ops
	members *presence.Cluster
	group   *run.Group
	undo    []func() // gives back what New took, last first
}

// New builds leaf to root. It waits for a database that is away, until ctx ends. A port
// that is taken and a key file that is wrong are errors.
func New(ctx context.Context, cfg *routerfile.File, o Options) (node *Node, err error) {
	log := o.Log.With("node", cfg.ID)
	n := &Node{cfg: cfg, group: run.NewGroup(log)}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	rc, err := cfg.Config()
	if err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	registry := run.NewRegistry()
	rc.Log, rc.Registry = log, registry
	rc.API.Reflection, rc.OpenNamespaces = o.Dev, o.Dev

	// The ops listener comes first: /healthz answers while the store is waited for.
	n.ops, err = run.ListenOps(ctx, run.OpsConfig{
		Addr: cfg.OpsListen, What: "ops listener of " + cfg.ID, Key: "ops_listen",
		Ready: n.Ready, Registry: registry, Pprof: cfg.Pprof,
	})
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, n.ops.Close)

	// Where events are kept.
	store, err := openStore(ctx, &cfg.Store, log)
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, func() {
		if err := store.Close(); err != nil {
			log.Error("close the store", "err", err)
		}
	})
	if o.Between != nil {
		store = o.Between(store)
	}

	// Who is there, and how to reach them.
	conn, err := run.ConnectNATS(cfg.NATS, cfg.ID, log)
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, conn.Close)
	client, err := run.ConnectEtcd(cfg.Etcd, log)
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, func() { _ = client.Close() })
	n.members = presence.New(presence.Config{
		Self: &presence.Member{
			Id: cfg.ID, Role: gatewayv1.Role_ROLE_ROUTER, Region: cfg.Region, Zone: cfg.Zone, Version: run.Version(),
		},
		Load: func(f *presence.Figure) { n.router.Load(f) }, Log: log, Registry: registry,
		Heard: func(f *presence.Figure) { n.router.Heard(f) },
		Gone:  func(m *presence.Member, left bool) { n.router.Gone(m, left) },
	}, etcd.NewRegistry(client, cfg.Etcd.Prefix, 0, log), busnats.NewLoadFigures(conn, cfg.NATS.Prefix, cfg.Region, log))
	others, err := run.NewPeers(cfg.Routers, cfg.ID, n.members)
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, others.Close)
	bc := bus.Default()
	bc.Prefix, bc.Log, bc.Registry = cfg.NATS.Prefix, log, registry
	fan, err := bus.New(bc, conn)
	if err != nil {
		return nil, err
	}

	// What the cluster has agreed on, and words of other members.
	messenger := busnats.NewMessenger(conn, cfg.NATS.Prefix, log)
	agreed := control.New(control.Config{Keeper: true, CheckSettings: gatewayfile.CheckSettings, Messenger: messenger, Log: log, Registry: registry},
		etcd.NewKeyValue(client, cfg.Etcd.Prefix, control.Folders(), log))

	// The router itself takes its ports, and nothing can fail after that; others learn the address from the membership.
	n.router, err = router.New(rc, router.Deps{Store: store, Bus: fan, Members: n.members, Peers: others, Control: agreed, Messenger: messenger})
	if err != nil {
		return nil, err
	}
	if err := n.router.Listen(ctx); err != nil {
		return nil, run.ListenError(err, "router "+cfg.ID, cfg.Router.API.Listen, "listen")
	}
	if err := n.router.ListenHTTP(ctx); err != nil {
		return nil, run.ListenError(err, "router "+cfg.ID+" (HTTP)", cfg.Router.API.HTTPListen, "http_listen")
	}
	n.made.Store(true)
	n.members.SetAddress(n.router.Addr())
	if cfg.AdvertiseAddr != "" {
		n.members.SetAddress(cfg.AdvertiseAddr)
	}

	// Started in this order, stopped in the reverse: the router finishes its calls while
	// store, bus and membership still work, then it deregisters; what is left in the
	// queue of the bus goes out, and /healthz answers to the end.
	n.group.Add("ops listener", n.ops.Run)
	n.group.Add("bus", fan.Run)
	n.group.Add("connections to routers", others.Run)
	n.group.Add("membership", n.members.Run)
	n.group.Add("messages on the bus", messenger.Run)
	n.group.Add("control", agreed.Run)
	n.group.Add("router", n.router.Run, rc.HandoverTimeout+rc.DrainDelay+rc.StopTimeout+rc.API.CallDeadline)
	return n, nil
}

// Addr is where the gRPC server listens.
func (n *Node) Addr() string { return n.router.Addr() }

// HTTPAddr is where the API over HTTP listens; "": nowhere.
func (n *Node) HTTPAddr() string { return n.router.HTTPAddr() }

// OpsAddr is where the ops listener is.
func (n *Node) OpsAddr() string { return n.ops.Addr() }

// Ready says that the router has joined and is not leaving.
func (n *Node) Ready() bool { return n.made.Load() && n.router.Ready() }

// Members is the cluster as the router sees it.
func (n *Node) Members() *presence.Snapshot { return n.members.Snapshot() }

// Run works until ctx ends, then leaves in order; abort ends the leaving at once.
func (n *Node) Run(ctx, abort context.Context) error {
	defer n.Close()
	if err := n.group.Run(ctx, abort); err != nil {
		return fmt.Errorf("%s: %w", n.cfg.ID, err)
	}
	return nil
}

// Close gives everything back. Idempotent; Run calls it.
func (n *Node) Close() {
	for i := len(n.undo) - 1; i >= 0; i-- {
		n.undo[i]()
	}
	n.undo = nil
}
