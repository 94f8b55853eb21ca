// Package routernode joins the parts of a router: store, bus, membership, peers
// and the router itself. cmd/router runs one, `spillway dev` one in its process.
package routernode

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/etcd"
	board "github.com/spillway-io/spillway/presence/nats"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router"
	"github.com/spillway-io/spillway/router/bus"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// Node is one router with all it needs.
type Node struct {
	router *router.Router
	ops    *run.Ops
	group  *run.Group
	close  []func()
}

// New builds leaf to root and listens; dev opens every namespace to everybody, and
// gRPC reflection. It waits for the store until ctx ends: a router without one has
// nothing to say.
func New(ctx context.Context, cfg config.RouterFile, dev bool, log *slog.Logger) (n *Node, err error) {
	log = log.With("node", cfg.ID)
	n = &Node{group: run.NewGroup(log)}
	built := n
	defer func() {
		if err != nil {
			built.Close()
		}
	}()
	registry := run.NewRegistry()
	rc, err := routerConfig(&cfg)
	if err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	rc.OpenNamespaces, rc.Reflection, rc.Log, rc.Registry = dev, dev, log, registry
	if err := rc.Validate(); err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	store, committers, err := openStore(ctx, &cfg, log)
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, func() { store.Close() })
	rc.Committers = committers
	conn, err := run.ConnectNATS(cfg.NATS, cfg.ID, log)
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, conn.Close)
	client, err := run.ConnectEtcd(cfg.Etcd, log)
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, func() { client.Close() })
	members := presence.New(presence.Config{
		Self: &presence.Member{Id: cfg.ID, Role: gatewayv1.Role_ROLE_ROUTER, Region: cfg.Region, Zone: cfg.Zone, Version: run.Version()},
		Load: func(f *presence.Figure) { n.router.Load(f) }, Log: log, Registry: registry,
	}, etcd.NewRegistry(client, cfg.Etcd.Prefix, etcd.DefaultTTL, log), board.NewBoard(conn, cfg.NATS.Prefix, cfg.Region, log))
	others, err := run.NewPeers(cfg.Routers, cfg.ID, members)
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, others.Close)
	bc := bus.Default()
	bc.Prefix, bc.Log, bc.Registry = cfg.NATS.Prefix, log, registry
	fan, err := bus.New(bc, conn)
	if err != nil {
		return nil, err
	}
	if n.router, err = router.New(rc, router.Deps{Store: store, Bus: fan, Members: members, Peers: others}); err != nil {
		return nil, err
	}
	if err := n.router.Listen(ctx); err != nil {
		return nil, run.ListenError(err, "router "+cfg.ID, cfg.Listen, "listen")
	}
	members.SetAddress(n.router.Addr())
	if cfg.AdvertiseAddr != "" {
		members.SetAddress(cfg.AdvertiseAddr)
	}
	n.ops, err = run.ListenOps(ctx, run.OpsConfig{
		Addr: cfg.OpsListen, What: "ops of " + cfg.ID, Key: "ops_listen", Ready: n.router.Ready, Registry: registry, Pprof: cfg.Pprof,
	})
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, n.ops.Close)
	// Stopped in reverse: the router takes no more calls and finishes those it has, then
	// the others may go.
	n.group.Add("ops listener", n.ops.Run)
	n.group.Add("bus", fan.Run)
	n.group.Add("membership", members.Run)
	n.group.Add("peers", others.Run)
	n.group.Add("router", n.router.Run, 2*rc.StopTimeout)
	return n, nil
}

// openStore opens the one store that is configured; a database that is away is
// waited for. It says how many commits the store takes at once.
func openStore(ctx context.Context, cfg *config.RouterFile, log *slog.Logger) (history.Store, int, error) {
	if cfg.Store.SQLite != "" {
		sc := sqlite.Default()
		sc.Path, sc.ReadConns = cfg.Store.SQLite, cfg.Store.ReadConns
		store, err := sqlite.Open(ctx, sc)
		return store, 1, err
	}
	pc := postgres.Default()
	pc.WriteConns, pc.ReadConns, pc.Migrate = cfg.Store.WriteConns, cfg.Store.ReadConns, cfg.Store.Migrate
	var err error
	if pc.DSN, err = cfg.Store.DSN(); err != nil {
		return nil, 0, err
	}
	for {
		store, err := postgres.Open(ctx, pc)
		if err == nil {
			return store, 2, nil
		}
		log.Warn("the store cannot be opened; trying again", "err", err)
		timer := time.NewTimer(2 * time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, 0, fmt.Errorf("open store: %w", err)
		case <-timer.C:
		}
	}
}

func routerConfig(cfg *config.RouterFile) (router.Config, error) {
	rc := router.Default()
	rc.ID, rc.Region, rc.Listen = cfg.ID, cfg.Region, cfg.Listen
	rc.MaxEventBytes = cfg.Limits.MaxEventBytes
	rc.QueueBytes, rc.CacheBytes = int64(cfg.Limits.QueueBytes), int64(cfg.Limits.CacheBytes)
	rc.Namespaces = make(map[string]router.Namespace)
	for name, ns := range cfg.Namespaces {
		rc.Namespaces[name] = namespace(ns)
	}
	keys, err := cfg.API.Keys()
	if err != nil {
		return rc, err
	}
	for _, k := range keys {
		key := router.Key{Name: k.Name, Secret: k.Secret}
		for _, right := range k.Rights {
			key.Rights = append(key.Rights, router.Right(right))
		}
		rc.Keys = append(rc.Keys, key)
	}
	secure, err := run.ServerTLS("tls", cfg.TLS)
	if secure != nil {
		rc.Transport = credentials.NewTLS(secure)
	}
	return rc, err
}

// namespace maps words that the configuration has checked.
func namespace(in config.Namespace) router.Namespace {
	access := map[string]router.Access{"granted": router.Granted, "everyone": router.Everyone, "nobody": router.Nobody}
	out := router.Namespace{
		HistorySize: in.HistorySize, HistoryTTL: in.HistoryTTL, Recover: in.Recover,
		Subscribe: access[in.Subscribe], Publish: access[in.Publish],
	}
	if in.Durability == "none" {
		out.Durability = router.None
	}
	return out
}

// Addr is where the gRPC server listens.
func (n *Node) Addr() string { return n.router.Addr() }

// OpsAddr is where the ops listener is.
func (n *Node) OpsAddr() string { return n.ops.Addr() }

// Ready says that the router has joined.
func (n *Node) Ready() bool { return n.router.Ready() }

// Run works until ctx ends, then leaves in order; abort ends that at once.
func (n *Node) Run(ctx, abort context.Context) error {
	defer n.Close()
	return n.group.Run(ctx, abort)
}

// Close gives everything back. Idempotent; Run calls it.
func (n *Node) Close() {
	for i := len(n.close) - 1; i >= 0; i-- {
		n.close[i]()
	}
	n.close = nil
}
