// Package edgenode joins the parts of an edge: bus, membership, routers and the
// edge itself. cmd/gateway and `spillway gateway` run one, `spillway dev` several
// in one process.
//
// Life: New makes everything and takes the ports; Run works until its context ends,
// then leaves in order and gives everything back. Goroutines are those of the
// parts (run.Group).
package edgenode

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/gateway"
	"github.com/spillway-io/spillway/gateway/bus"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/upstream"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/etcd"
	busnats "github.com/spillway-io/spillway/presence/nats"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// afterDrain is what the edge gets beyond its drain deadline to end its parts.
const afterDrain = 10 * time.Second

// longestDrain is what a deadline may be changed to while the edge runs.
const longestDrain = 15 * time.Minute

// Node is one edge with all it needs.
type Node struct {
	cfg     *gatewayfile.File
	edge    *gateway.Edge
	ops     *run.Ops
	members *presence.Cluster
	control *control.Control
	reload  *reloader
	group   *run.Group
	undo    []func() // gives back what New took, last first

	minted atomic.Bool // there was a key for tickets once
}

// New builds leaf to root. A port that is taken and a key file that is wrong are
// errors here; infrastructure that is away is not.
func New(ctx context.Context, cfg *gatewayfile.File, log *slog.Logger) (node *Node, err error) {
	log = log.With("node", cfg.ID)
	n := &Node{cfg: cfg, group: run.NewGroup(log)}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	gc := gatewayConfig(cfg)
	registry := run.NewRegistry()
	gc.Log, gc.Registry = log, registry
	var shown *certificate
	if gc.TLS, shown, err = serverTLS(cfg.TLS); err != nil {
		return nil, err
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
			Id: cfg.ID, Role: gatewayv1.Role_ROLE_EDGE, Region: cfg.Region, Zone: cfg.Zone, Address: cfg.AdvertiseURL,
			Capacity: uint64(cfg.MaxConns - cfg.Margin), Version: run.Version(),
		},
		Load: func(f *presence.Figure) { n.edge.Load(f) }, Log: log, Registry: registry,
	}, etcd.NewRegistry(client, cfg.Etcd.Prefix, 0, log), busnats.NewLoadFigures(conn, cfg.NATS.Prefix, cfg.Region, log))
	routers, err := run.NewPeers(cfg.Routers, "", n.members)
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, routers.Close)

	// What the cluster has agreed on, and words to other members.
	messenger := busnats.NewMessenger(conn, cfg.NATS.Prefix, log)
	n.control = control.New(control.Config{TokenLife: cfg.Auth.MaxTTL, Messenger: messenger, Log: log, Registry: registry},
		etcd.NewKeyValue(client, cfg.Etcd.Prefix, control.Folders(), log))

	// What the edge asks, and what it hears.
	uc := upstream.Default()
	uc.Edge, uc.View, uc.Peers, uc.Log, uc.Registry = cfg.ID, n.members, routers, log, registry
	up, err := upstream.New(uc)
	if err != nil {
		return nil, err
	}
	fc := feed.Default()
	bc := bus.Default()
	bc.Prefix, bc.Shards, bc.Registry = cfg.NATS.Prefix, fc.ShardCount(), registry
	channels, err := bus.New(bc, conn)
	if err != nil {
		return nil, err
	}

	// The edge itself takes its port, then the ops listener.
	deps := gateway.Deps{Bus: channels, Asker: up, Upstream: up, Members: n.members, View: n.members, Feed: &fc,
		Lag: up, Tickets: n.control, Revocations: n.control, Messenger: messenger, Peers: messenger, Operations: n.control}
	verifier, err := cfg.Auth.Verifier(log, registry)
	if err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	if verifier != nil {
		deps.Verifier = verifier
	}
	n.edge, err = gateway.New(gc, deps)
	if err != nil {
		return nil, run.ListenError(err, "edge "+cfg.ID, cfg.Listen, "listen")
	}
	n.undo = append(n.undo, n.edge.Close)
	n.ops, err = run.ListenOps(ctx, run.OpsConfig{
		Addr: cfg.OpsListen, What: "ops listener of " + cfg.ID, Key: "ops_listen",
		Ready: n.Ready, Registry: registry, Pprof: cfg.Pprof,
	})
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, n.ops.Close)

	// Started in this order, stopped in the reverse: the edge drains while all the
	// others still work, its lease beats until the last conn is gone, and /healthz
	// answers to the end.
	n.group.Add("ops listener", n.ops.Run)
	if verifier != nil {
		n.group.Add("token keys", verifier.Run)
	}
	n.group.Add("connections to routers", routers.Run)
	n.group.Add("upstream", up.Run)
	n.group.Add("membership", n.members.Run)
	n.group.Add("messages on the bus", messenger.Run)
	n.group.Add("control", n.control.Run)
	n.reload = &reloader{edge: n.edge, agreed: n.control, log: log, file: cfg, certificate: shown}
	n.group.Add("settings", n.reload.run)
	return n, nil
}

// ReadAgain makes SIGHUP read the file again by calling read; before Run only.
func (n *Node) ReadAgain(read func() (*gatewayfile.File, error)) { n.reload.read = read }

// Addr is where clients connect.
func (n *Node) Addr() string { return n.edge.Addr() }

// OpsAddr is where the ops listener is.
func (n *Node) OpsAddr() string { return n.ops.Addr() }

// Ready says that the edge has joined and is not leaving. An edge without a key for
// tickets has not quite joined: who comes in the first moments of a cluster would get
// none until the next ping, and be a stranger if the connection breaks before.
func (n *Node) Ready() bool {
	if !n.minted.Load() {
		_, _, ok := n.control.Mint(time.Now())
		n.minted.Store(ok)
	}
	return n.edge.Ready() && n.minted.Load()
}

// StopWithin changes what a stop may take that begins from now on, also one that hurries
// a drain which is under way. From any goroutine.
func (n *Node) StopWithin(d time.Duration) {
	s := n.edge.Settings()
	s.DrainDeadline, s.DrainNotice = d, 0
	_ = n.edge.Reload(s) // the edge counts and logs what it refuses
}

// Members is the cluster as the edge sees it.
func (n *Node) Members() *presence.Snapshot { return n.members.Snapshot() }

// Advertise is the URL that clients may be sent to, for an edge that picked its own
// port; before Run only.
func (n *Node) Advertise(url string) { n.members.SetAddress(url) }

// Run works until ctx ends or a drain operation of this edge is found, then leaves in
// order; abort ends the leaving at once.
func (n *Node) Run(ctx, abort context.Context) error {
	defer n.Close()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	n.group.Add("edge", func(ctx context.Context) error {
		err := n.edge.Run(ctx, abort)
		if err == nil {
			leave() // it was drained by an operation: the others stop as after a signal
			<-ctx.Done()
		}
		return err
	}, max(n.cfg.DrainDeadline, longestDrain)+afterDrain)
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
