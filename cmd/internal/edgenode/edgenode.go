// Package edgenode joins the parts of an edge: bus, membership, routers and the
// edge itself. cmd/gateway runs one, `spillway dev` several in one process.
package edgenode

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/gateway"
	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/bus"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/upstream"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/etcd"
	board "github.com/spillway-io/spillway/presence/nats"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Node is one edge with all it needs.
type Node struct {
	edge  *gateway.Edge
	ops   *run.Ops
	group *run.Group
	abort context.Context
	close []func()
}

// New builds leaf to root and listens; a port that is taken is an error here. An
// abort that ends makes leaving end at once.
func New(abort context.Context, cfg config.GatewayFile, log *slog.Logger) (n *Node, err error) {
	log = log.With("node", cfg.ID)
	n = &Node{abort: abort, group: run.NewGroup(log)}
	built := n
	defer func() {
		if err != nil {
			built.Close()
		}
	}()
	gc := gatewayConfig(&cfg)
	if err := gc.Validate(); err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	verifier, err := newVerifier(&cfg.Auth)
	if err != nil {
		return nil, run.Usagef("%s", run.OneLine(err))
	}
	registry := run.NewRegistry()
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
		Self: &presence.Member{
			Id: cfg.ID, Role: gatewayv1.Role_ROLE_EDGE, Region: cfg.Region, Zone: cfg.Zone, Address: cfg.AdvertiseURL,
			Capacity: uint64(gc.MaxConns - gc.Margin), Version: run.Version(),
		},
		Load: func(f *presence.Figure) { n.edge.Load(f) }, Log: log, Registry: registry,
	}, etcd.NewRegistry(client, cfg.Etcd.Prefix, etcd.DefaultTTL, log), board.NewBoard(conn, cfg.NATS.Prefix, cfg.Region, log))
	routers, err := run.NewPeers(cfg.Routers, "", members)
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, routers.Close)
	uc := upstream.Default()
	uc.Edge, uc.View, uc.Peers, uc.Log, uc.Registry = cfg.ID, members, routers, log, registry
	up, err := upstream.New(uc)
	if err != nil {
		return nil, err
	}
	fc, bc := feed.Default(), bus.Default()
	bc.Prefix, bc.Shards, bc.Registry = cfg.NATS.Prefix, fc.ShardCount(), registry
	channels, err := bus.New(bc, conn)
	if err != nil {
		return nil, err
	}
	gc.Log, gc.Registry = log, registry
	n.edge, err = gateway.New(gc, gateway.Deps{
		Bus: channels, Asker: up, Upstream: up, Members: members, View: members, Verifier: verifier, Feed: &fc,
	})
	if err != nil {
		return nil, run.ListenError(err, "edge "+cfg.ID, cfg.Listen, "listen")
	}
	n.close = append(n.close, n.edge.Close)
	n.ops, err = run.ListenOps(abort, run.OpsConfig{
		Addr: cfg.OpsListen, What: "ops of " + cfg.ID, Key: "ops_listen", Ready: n.edge.Ready, Registry: registry, Pprof: cfg.Pprof,
	})
	if err != nil {
		return nil, err
	}
	n.close = append(n.close, n.ops.Close)
	// Stopped in reverse: conns first, on their own deadline; then the membership, whose
	// lease beats until the last conn is gone.
	n.group.Add("ops listener", n.ops.Run)
	n.group.Add("membership", members.Run)
	n.group.Add("routers", routers.Run)
	n.group.Add("questions", up.Run)
	n.group.Add("edge", func(ctx context.Context) error { return n.edge.Run(ctx, abort) }, gc.DrainDeadline*2)
	return n, nil
}

// newVerifier reads the keys that tokens are checked with; nil if there are none
// and anonymous clients are welcome.
func newVerifier(cfg *config.Auth) (gateway.Verifier, error) {
	if cfg.JWKSURL != "" {
		return nil, fmt.Errorf("auth.jwks_url is not acted on in this version: use public_key_files")
	}
	ac := auth.Config{MaxTTL: cfg.MaxTTL}
	if cfg.HS256SecretFile != "" {
		secret, err := config.Secret("auth.hs256_secret_file", cfg.HS256SecretFile)
		if err != nil {
			return nil, err
		}
		ac.HS256 = []byte(secret)
	}
	for _, path := range cfg.PublicKeyFiles {
		text, err := config.Secret("auth.public_key_files", path)
		if err != nil {
			return nil, err
		}
		keys, err := auth.ParsePublicKeys([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("auth.public_key_files: %s: %w", path, err)
		}
		ac.PublicKeys = append(ac.PublicKeys, keys...)
	}
	if ac.HS256 == nil && ac.PublicKeys == nil {
		return nil, nil
	}
	return auth.New(ac)
}

func gatewayConfig(cfg *config.GatewayFile) gateway.Config {
	gc := gateway.Default()
	gc.ID, gc.Region, gc.Listen, gc.AdvertiseURL = cfg.ID, cfg.Region, cfg.Listen, cfg.AdvertiseURL
	gc.Anonymous, gc.Origins = cfg.Auth.Anonymous, cfg.Origins
	gc.MaxConns, gc.Margin, gc.MaxSubscriptions = cfg.Limits.MaxConns, cfg.Limits.Margin, cfg.Limits.MaxSubscriptions
	gc.MaxFrameBytes, gc.SendQueueBytes = cfg.Limits.MaxFrameBytes, cfg.Limits.SendQueueBytes
	gc.DrainDeadline = cfg.Drain.Deadline
	gc.CloseWait = min(gc.CloseWait, max(cfg.Drain.Deadline/5, 1))
	return gc
}

// Addr is where clients connect.
func (n *Node) Addr() string { return n.edge.Addr() }

// OpsAddr is where the ops listener is.
func (n *Node) OpsAddr() string { return n.ops.Addr() }

// Ready says that the edge has joined.
func (n *Node) Ready() bool { return n.edge.Ready() }

// Run works until ctx ends, then leaves in order.
func (n *Node) Run(ctx context.Context) error {
	defer n.Close()
	return n.group.Run(ctx, n.abort)
}

// Close gives everything back. Idempotent; Run calls it.
func (n *Node) Close() {
	for i := len(n.close) - 1; i >= 0; i-- {
		n.close[i]()
	}
	n.close = nil
}
