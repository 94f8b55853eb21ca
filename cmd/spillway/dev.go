package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type devCmd struct {
	Edges    int    `help:"Number of edges." default:"3"`
	Data     string `help:"Folder to keep data in; default: a temporary one." placeholder:"DIR" type:"path"`
	WSPort   int    `help:"Port of the first edge; the others follow. 0 picks ports." default:"8400" name:"ws-port"`
	GRPCPort int    `help:"Port of the router's gRPC API; 0 picks one." default:"8390" name:"grpc-port"`
	HTTPPort int    `help:"Port of the router's API over HTTP; its ops listener is the next. 0 picks ports." default:"8380" name:"http-port"`
	OpsPort  int    `help:"Port of the first edge's ops listener; the others follow. 0 picks ports." default:"8500" name:"ops-port"`
	LogLevel string `help:"debug, info, warn or error." default:"warn" placeholder:"LEVEL"`

	out io.Writer // of the greeting; nil: standard output
}

const (
	maxEdges = 50
	// joinTime bounds the wait until every node sees every other.
	joinTime = 20 * time.Second
	// devDrain is what `spillway drain` takes at most unless it says otherwise. In one
	// second, as it once was, clients that were slow to move were cut off; in production
	// it is 25 s, for more clients than there are here.
	devDrain = 10 * time.Second
	// devStop is the same when everything stops: whoever pressed ctrl-C is waiting, and
	// there is nowhere to move to.
	devStop = time.Second
)

// devCluster is what `spillway dev` runs, from the leaves to the root.
type devCluster struct {
	infra  *infra.Infra
	secret string // path of the secret that tokens are signed with
	router *routernode.Node
	edges  []*edgenode.Node
}

// Run is the whole cluster in one process, on the loopback only: real parts, no
// fakes.
func (c *devCmd) Run(e *env) error {
	begun := time.Now()
	if c.Edges < 1 || c.Edges > maxEdges {
		return run.Usagef("--edges: %d: must be between 1 and %d", c.Edges, maxEdges)
	}
	log, err := run.NewLog(os.Stderr, c.LogLevel)
	if err != nil {
		return err
	}
	// 1. Ports first: they are the likeliest thing to be wrong.
	if err := c.checkPorts(e.ctx); err != nil {
		return err
	}
	// 2. The data folder: a temporary one goes when everything has stopped.
	dir, err := infra.OpenDir(c.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	// 3. What the nodes stand on, then the nodes, leaf to root.
	cluster := &devCluster{}
	defer cluster.close()
	if err := cluster.build(e.ctx, c, dir.Path, log); err != nil {
		return err
	}
	// 4. Work until the first signal. Stopped in the reverse of this order: the edges
	// let their clients go while the router still answers.
	group := run.NewGroup(log)
	group.Add("router", func(ctx context.Context) error { return cluster.router.Run(ctx, e.abort) })
	group.Add("edges", func(ctx context.Context) error { return cluster.runEdges(ctx, e.abort) }, devStop+10*time.Second)
	group.Add("greeting", func(ctx context.Context) error {
		if cluster.joined(ctx) {
			c.greet(cmp.Or[io.Writer](c.out, os.Stdout), cluster, dir.Path, time.Since(begun))
		}
		<-ctx.Done()
		return nil
	})
	return group.Run(e.ctx, e.abort)
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// after is the i-th port from first; 0 stays 0.
func after(first, i int) int {
	if first == 0 {
		return 0
	}
	return first + i
}

// checkPorts takes all ports for a moment, so that the first one that is missing is
// told with the flag that changes it.
func (c *devCmd) checkPorts(ctx context.Context) error {
	type want struct {
		what, flag string
		port       int
	}
	wants := []want{{"router (gRPC)", "--grpc-port", c.GRPCPort}, {"router (HTTP)", "--http-port", c.HTTPPort},
		{"router (ops)", "--http-port", after(c.HTTPPort, 1)}}
	for i := range c.Edges {
		wants = append(wants, want{fmt.Sprint("edge ", i+1), "--ws-port", after(c.WSPort, i)},
			want{fmt.Sprintf("edge %d (ops)", i+1), "--ops-port", after(c.OpsPort, i)})
	}
	for _, w := range wants {
		if w.port < 0 || w.port > 65535 {
			return run.Usagef("%s: %d is not a port", w.flag, w.port)
		}
		if w.port == 0 {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", local(w.port))
		if err != nil {
			return run.ListenError(err, w.what, local(w.port), w.flag)
		}
		defer listener.Close()
	}
	return nil
}

func (d *devCluster) build(ctx context.Context, c *devCmd, dir string, log *slog.Logger) (err error) {
	if d.secret, err = devSecret(filepath.Join(dir, "token-secret")); err != nil {
		return run.Usagef("token secret: %v", err)
	}
	if d.infra, err = infra.Start(ctx, infra.Config{Dir: filepath.Join(dir, "infra")}); err != nil {
		return err
	}
	node := run.DefaultNode("")
	node.Region, node.LogLevel, node.Pprof = "dev", c.LogLevel, true
	node.NATS.URLs = []string{d.infra.NATSURL()}
	node.Etcd.Endpoints, node.Etcd.Prefix = []string{d.infra.EtcdEndpoint()}, "/spillway/dev"
	if err := forgetMembers(ctx, node.Etcd, log); err != nil {
		return err
	}
	rc := routerfile.Default()
	rc.Node, rc.Router.API.Listen, rc.Store.SQLite.Path = node, local(c.GRPCPort), filepath.Join(dir, "history.db")
	rc.ID, rc.Router.API.HTTPListen, rc.OpsListen = "router-1", local(c.HTTPPort), local(after(c.HTTPPort, 1))
	if d.router, err = routernode.New(ctx, &rc, routernode.Options{Dev: true, Log: log}); err != nil {
		return err
	}
	for i := range c.Edges {
		gc := gatewayfile.Default()
		gc.Node, gc.Listen = node, local(after(c.WSPort, i))
		gc.ID, gc.OpsListen = fmt.Sprint("edge-", i+1), local(after(c.OpsPort, i))
		gc.Auth.Anonymous, gc.Auth.HS256SecretFile = true, d.secret
		gc.DrainDeadline, gc.DrainNotice = devDrain, 0 // nobody stands in front
		edge, err := edgenode.New(ctx, &gc, log)
		if err != nil {
			return err
		}
		edge.Advertise("ws://" + edge.Addr() + "/v1/ws")
		d.edges = append(d.edges, edge)
	}
	return nil
}

// forgetMembers removes the records of a run that was killed. etcd gives their
// leases a whole life more when it starts, and the nodes of this run have the same
// ids.
func forgetMembers(ctx context.Context, cfg run.Etcd, log *slog.Logger) error {
	client, err := run.ConnectEtcd(cfg, log)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := client.Delete(ctx, cfg.Prefix+"/members/", clientv3.WithPrefix()); err != nil {
		return fmt.Errorf("forget old members: %w", err)
	}
	return nil
}

// runEdges returns when ctx has ended and the edges with it, or one fails. An edge that
// was drained stays away; the others, or nobody, go on.
func (d *devCluster) runEdges(ctx, abort context.Context) error {
	running, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	stop := context.AfterFunc(ctx, func() {
		d.hurry() // before they begin to leave
		leave()
	})
	defer stop()
	g, running := errgroup.WithContext(running)
	for _, edge := range d.edges {
		g.Go(func() error { // ends with running or abort, or is drained; waited for below
			err := edge.Run(running, abort)
			if err != nil {
				d.hurry()
			}
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// hurry gives edges that leave from now on, or are leaving, a moment only.
func (d *devCluster) hurry() {
	for _, edge := range d.edges {
		edge.StopWithin(devStop)
	}
}

// joined waits until every node is ready and sees all the others.
func (d *devCluster) joined(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !d.complete() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

func (d *devCluster) complete() bool {
	all := 1 + len(d.edges)
	if !d.router.Ready() || len(d.router.Members().Members()) < all {
		return false
	}
	for _, edge := range d.edges {
		if !edge.Ready() || len(edge.Members().Members()) < all {
			return false
		}
	}
	return true
}

// close gives back what is left, whether or not it ran.
func (d *devCluster) close() {
	for _, edge := range d.edges {
		edge.Close()
	}
	if d.router != nil {
		d.router.Close()
	}
	if d.infra != nil {
		d.infra.Close()
	}
}
