package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	"github.com/spillway-io/spillway/presence/nats/natsserver"
)

type devCmd struct {
	Edges    int    `help:"Number of edges." default:"3"`
	Data     string `help:"Folder to keep data in; default: a temporary one." type:"path"`
	WSPort   int    `help:"Port of the first edge; the others follow. 0 picks ports." default:"8400" name:"ws-port"`
	GRPCPort int    `help:"Port of the router." default:"8390" name:"grpc-port"`
	HTTPPort int    `help:"Port of the router's HTTP listener." default:"8380" name:"http-port"`
	OpsPort  int    `help:"Port of the first edge's ops listener; the others follow." default:"8500" name:"ops-port"`
	LogLevel string `help:"debug, info, warn or error." default:"warn"`
}

// readyTime bounds the wait for all nodes to join.
const readyTime = 20 * time.Second

// Run is the whole cluster in one process: real parts, loopback only. It stops in
// order: edges, router, then what they stand on.
func (c *devCmd) Run(e *env) error {
	if c.Edges < 1 || c.Edges > 50 {
		return run.Usagef("--edges: %d: must be between 1 and 50", c.Edges)
	}
	log, err := run.NewLog(os.Stderr, c.LogLevel)
	if err != nil {
		return err
	}
	dir, cleanup, err := dataDir(c.Data)
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	defer cleanup()
	bus, err := natsserver.Start(e.ctx, 0)
	if err != nil {
		return err
	}
	defer bus.Close()
	members, err := etcdserver.Start(e.ctx, etcdserver.Config{Dir: filepath.Join(dir, "etcd")})
	if err != nil {
		return err
	}
	defer members.Close()
	secret, err := devSecret(filepath.Join(dir, "token-secret"))
	if err != nil {
		return fmt.Errorf("token secret: %w", err)
	}
	shared := config.Node{
		Region: "dev", LogLevel: c.LogLevel,
		NATS: config.NATS{URLs: []string{bus.URL()}, Prefix: "spillway"},
		Etcd: config.Etcd{Endpoints: []string{members.Endpoint()}, Prefix: "/spillway/dev"},
	}
	router, err := c.router(e.ctx, shared, dir, log)
	if err != nil {
		return err
	}
	var edges []*edgenode.Node
	for i := range c.Edges {
		edge, err := c.edge(e.abort, shared, i, secret, log)
		if err != nil {
			router.Close()
			for _, other := range edges {
				other.Close()
			}
			return err
		}
		edges = append(edges, edge)
	}
	return c.serve(e, router, edges, secret)
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// after is the i-th port from first; 0 stays 0.
func after(first, i int) int {
	if first == 0 {
		return 0
	}
	return first + i
}

func (c *devCmd) router(ctx context.Context, shared config.Node, dir string, log *slog.Logger) (*routernode.Node, error) {
	rc := config.DefaultRouter()
	rc.Node = shared
	rc.ID, rc.Listen, rc.OpsListen = "router-1", local(c.GRPCPort), local(c.HTTPPort)
	rc.Store.SQLite = filepath.Join(dir, "history.db")
	return routernode.New(ctx, rc, true, log)
}

func (c *devCmd) edge(abort context.Context, shared config.Node, i int, secret string, log *slog.Logger) (*edgenode.Node, error) {
	gc := config.DefaultGateway()
	gc.Node = shared
	gc.ID = fmt.Sprint("edge-", i+1)
	gc.Listen, gc.OpsListen = local(after(c.WSPort, i)), local(after(c.OpsPort, i))
	if c.WSPort != 0 {
		gc.AdvertiseURL = "ws://" + gc.Listen + "/v1/ws"
	}
	gc.Auth.Anonymous, gc.Auth.HS256SecretFile = true, secret
	gc.Drain.Deadline = 4 * time.Second
	return edgenode.New(abort, gc, log)
}

// devSecret makes the secret that dev tokens are signed with, once.
func devSecret(path string) (string, error) {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return path, os.WriteFile(path, []byte(hex.EncodeToString(b[:])+"\n"), 0o600)
}

func (c *devCmd) serve(e *env, router *routernode.Node, edges []*edgenode.Node, secret string) error {
	// The router stops when the edges have: what they hold may still need it.
	routing, stopRouter := context.WithCancel(context.Background())
	defer stopRouter()
	back, failing := errgroup.WithContext(routing)
	back.Go(func() error { return router.Run(failing, e.abort) })
	front, broken := errgroup.WithContext(e.ctx)
	for _, edge := range edges {
		front.Go(func() error { return edge.Run(broken) })
	}
	front.Go(func() error {
		if c.await(broken, router, edges) {
			c.greet(router, edges, secret)
		}
		select {
		case <-broken.Done():
			return nil
		case <-failing.Done():
			return errors.New("the router ended")
		}
	})
	err := front.Wait()
	stopRouter()
	return errors.Join(err, back.Wait())
}

// await waits until all nodes have joined.
func (c *devCmd) await(ctx context.Context, router *routernode.Node, edges []*edgenode.Node) bool {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(readyTime); time.Now().Before(deadline); {
		ready := router.Ready()
		for _, edge := range edges {
			ready = ready && edge.Ready()
		}
		if ready {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	fmt.Fprintln(os.Stderr, "spillway: not all nodes have joined; going on")
	return true
}

func (c *devCmd) greet(router *routernode.Node, edges []*edgenode.Node, secret string) {
	fmt.Printf("Spillway is up, for development: loopback only, and clients need no token.\n\n")
	fmt.Printf("  router   %-24s gRPC (with reflection)\n", router.Addr())
	fmt.Printf("           http://%-17s /metrics /healthz /readyz\n", router.OpsAddr())
	for i, edge := range edges {
		fmt.Printf("  edge-%-3d ws://%s/v1/ws   ops http://%s\n", i+1, edge.Addr(), edge.OpsAddr())
	}
	if c.Data != "" {
		fmt.Printf("  data     %s\n", c.Data)
	} else {
		fmt.Printf("  data     in a temporary folder, removed at the end; --data DIR keeps it\n")
	}
	server, edge := "", ""
	if router.Addr() != "127.0.0.1:8390" {
		server = " --server " + router.Addr()
	}
	if edges[0].Addr() != "127.0.0.1:8400" {
		edge = " --edge ws://" + edges[0].Addr() + "/v1/ws"
	}
	fmt.Printf("\nTry next, in another terminal:\n")
	fmt.Printf("  go run ./cmd/spillway subscribe%s chat:room-7\n", edge)
	fmt.Printf("  go run ./cmd/spillway publish%s chat:room-7 '{\"text\":\"hi\"}'\n", server)
	fmt.Printf("  go run ./cmd/spillway nodes%s\n", server)
	fmt.Printf("\nTokens for named users: go run ./cmd/spillway token --sub ann --channels 'chat:*' --secret-file %s\n", secret)
	fmt.Printf("ctrl-C stops it.\n")
}
