package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/router/history/historytest/pgserver"
)

// Stores.
const (
	SQLite   = "sqlite" // one router only
	Postgres = "postgres"
)

// Config says what runs.
type Config struct {
	Binary     []string // a command with the parts of Part; default: this program
	Dir        string   // of configurations, logs and data; default: a temporary one that Close removes
	Routers    int      // default 1 with SQLite, 2 with PostgreSQL
	Edges      int      // started at first
	Spare      int      // have ports, for AddEdge to start later
	Store      string   // SQLite or Postgres
	Namespaces string   // YAML: {chat: {…}}
	Router     string   // YAML lines added to each router's file
	// Edge gives the YAML lines added to an edge's file; n counts from 0.
	Edge func(c *Cluster, n int) string
	// Env gives variables of the environment to a process ("infra", "router-1",
	// "edge-1", …) each time that it starts; they stand above its file.
	Env func(c *Cluster, process string) []string
	// NATS and etcd as two processes rather than one.
	SeparateInfra bool
	StartTime     time.Duration // for all to serve; default 60 s
}

// Cluster is what runs. Its methods may be called from any goroutine but Close.
type Cluster struct {
	cfg     Config
	ownDir  bool
	dsn     string
	ports   [2]int // NATS, etcd
	pg      *pgserver.Server
	infra   []*process.Process
	routers []*Node
	conns   []*grpc.ClientConn

	mu      sync.Mutex // guards all below
	edges   []*Node    // with those that were not started yet
	started int        // of them
}

// Node is a router or an edge.
type Node struct {
	*process.Process
	ID      string
	Port    int // clients (edge) or gRPC (router)
	OpsPort int
	config  string // its file
}

// URL of an edge for clients.
func (n *Node) URL() string { return fmt.Sprintf("ws://127.0.0.1:%d/v1/ws", n.Port) }

// Addr is host:port of the node.
func (n *Node) Addr() string { return fmt.Sprintf("127.0.0.1:%d", n.Port) }

// Start runs everything and waits until it serves.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.defaults(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTime)
	defer cancel()
	for i := range c.ports {
		var err error
		if c.ports[i], err = process.FreePort(); err != nil {
			return err
		}
	}
	if err := c.startStore(ctx); err != nil {
		return err
	}
	if err := c.startInfra(); err != nil {
		return err
	}
	for i := range c.cfg.Routers {
		if err := c.addRouter(i); err != nil {
			return err
		}
	}
	for i := range c.cfg.Edges + c.cfg.Spare {
		if err := c.prepareEdge(i); err != nil {
			return err
		}
	}
	for range c.cfg.Edges {
		if _, err := c.AddEdge(); err != nil {
			return err
		}
	}
	for _, n := range append(c.Routers(), c.Edges()...) {
		if err := c.AwaitReady(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) defaults() error {
	cfg := &c.cfg
	if len(cfg.Binary) == 0 {
		var err error
		if cfg.Binary, err = process.Self(); err != nil {
			return err
		}
	}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "spillway-cluster-")
		if err != nil {
			return err
		}
		cfg.Dir, c.ownDir = dir, true
	}
	if cfg.Store == "" {
		cfg.Store = SQLite
	}
	if cfg.Routers == 0 {
		cfg.Routers = 1
		if cfg.Store == Postgres {
			cfg.Routers = 2
		}
	}
	if cfg.Store == SQLite && cfg.Routers > 1 {
		return errors.New("SQLite is for a single router")
	}
	if cfg.StartTime == 0 {
		cfg.StartTime = 60 * time.Second
	}
	return nil
}

func (c *Cluster) startStore(ctx context.Context) error {
	if c.cfg.Store == SQLite {
		return nil
	}
	var err error
	if c.pg, err = pgserver.New(); err != nil {
		return err
	}
	c.dsn, err = c.pg.NewDatabase(ctx)
	return err
}

// DSN of the database in the PostgreSQL server; "" with SQLite.
func (c *Cluster) DSN() string { return c.dsn }

// Store is the PostgreSQL server; nil with SQLite.
func (c *Cluster) Store() *pgserver.Server { return c.pg }

func (c *Cluster) startInfra() error {
	nats, etcd := fmt.Sprint(c.ports[0]), fmt.Sprint(c.ports[1])
	data := filepath.Join(c.cfg.Dir, "etcd-data")
	if !c.cfg.SeparateInfra {
		c.infra = []*process.Process{c.process("infra", "infra", "--nats-port", nats, "--etcd-port", etcd, "--data", data)}
	} else {
		c.infra = []*process.Process{
			c.process("nats", "infra", "--only", "nats", "--nats-port", nats),
			c.process("etcd", "infra", "--only", "etcd", "--etcd-port", etcd, "--data", data),
		}
	}
	for _, p := range c.infra {
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// NATSAddr is host:port of NATS.
func (c *Cluster) NATSAddr() string { return fmt.Sprintf("127.0.0.1:%d", c.ports[0]) }

// EtcdAddr is host:port of etcd.
func (c *Cluster) EtcdAddr() string { return fmt.Sprintf("127.0.0.1:%d", c.ports[1]) }

// Infra is the process of NATS and etcd, or one of each in this order.
func (c *Cluster) Infra() []*process.Process { return c.infra }

func (c *Cluster) process(name string, args ...string) *process.Process {
	cfg := process.Config{Name: name, Command: append(slices.Clip(c.cfg.Binary), args...), Log: filepath.Join(c.cfg.Dir, name+".log")}
	if c.cfg.Env != nil {
		cfg.Environ = func() []string { return c.cfg.Env(c, name) }
	}
	return process.New(cfg)
}

// node makes a process with a configuration file, and does not start it.
func (c *Cluster) node(command, id, text string) (*Node, error) {
	n := &Node{ID: id}
	var err error
	if n.Port, err = process.FreePort(); err != nil {
		return nil, err
	}
	if n.OpsPort, err = process.FreePort(); err != nil {
		return nil, err
	}
	n.config = filepath.Join(c.cfg.Dir, id+".yaml")
	n.Process = c.process(id, command, "--config", n.config)
	shared := fmt.Sprintf("id: %s\nlisten: %s\nops_listen: 127.0.0.1:%d\nnats: {urls: [\"nats://127.0.0.1:%d\"]}\netcd: {endpoints: [\"http://127.0.0.1:%d\"]}\n",
		id, n.Addr(), n.OpsPort, c.ports[0], c.ports[1])
	if err := os.WriteFile(n.config, []byte(shared+strings.ReplaceAll(text, "{url}", n.URL())), 0o600); err != nil {
		return nil, err
	}
	return n, nil
}

// Configure adds YAML lines to the node's file, for its next start. They must name keys
// that it does not have yet.
func (n *Node) Configure(text string) error {
	f, err := os.OpenFile(n.config, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (c *Cluster) addRouter(i int) error {
	store := fmt.Sprintf("store: {sqlite: %q}\n", filepath.Join(c.cfg.Dir, "history.db"))
	if c.cfg.Store == Postgres {
		store = fmt.Sprintf("store: {postgres: %q}\n", c.dsn)
	}
	n, err := c.node("router", fmt.Sprint("router-", i+1), store+"namespaces: "+c.cfg.Namespaces+"\n"+c.cfg.Router)
	if err != nil {
		return err
	}
	c.routers = append(c.routers, n)
	return n.Start()
}

// prepareEdge names one: edge-1, edge-2, … {url} in its configuration stands for its
// own URL.
func (c *Cluster) prepareEdge(i int) error {
	text := ""
	if c.cfg.Edge != nil {
		text = c.cfg.Edge(c, i)
	}
	n, err := c.node("gateway", fmt.Sprint("edge-", i+1), text)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.edges = append(c.edges, n)
	return nil
}

// AddEdge starts the next edge and does not wait for it.
func (c *Cluster) AddEdge() (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started == len(c.edges) {
		return nil, errors.New("all edges were started")
	}
	n := c.edges[c.started]
	if err := n.Start(); err != nil {
		return nil, err
	}
	c.started++
	return n, nil
}

// Dir holds configurations, logs and data.
func (c *Cluster) Dir() string { return c.cfg.Dir }

// Routers are all that were started.
func (c *Cluster) Routers() []*Node { return slices.Clone(c.routers) }

// Edges are all that were started, those that have ended too.
func (c *Cluster) Edges() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.edges[:c.started])
}

// Planned are all edges, with those that were not started yet.
func (c *Cluster) Planned() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.edges)
}

// AwaitReady waits until a node serves.
func (c *Cluster) AwaitReady(ctx context.Context, n *Node) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if status, _ := n.Get(ctx, "/readyz"); status == http.StatusOK {
			return nil
		}
		select {
		case <-n.Done():
			return fmt.Errorf("%s ended at its start: %s", n.ID, n.LogTail(1))
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w: %s", n.ID, ctx.Err(), n.LogTail(1))
		case <-tick.C:
		}
	}
}

// Get asks the ops listener of a node.
func (n *Node) Get(ctx context.Context, path string) (status int, body string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", n.OpsPort, path), nil)
	if err != nil {
		return 0, ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(text)
}

// Dial gives a connection to a router; Close closes it.
func (c *Cluster) Dial(n *Node) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+n.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()), run.Reconnect())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.conns = append(c.conns, conn)
	c.mu.Unlock()
	return conn, nil
}

// Processes are all of ours but the store.
func (c *Cluster) Processes() []*process.Process {
	all := slices.Clone(c.infra)
	for _, n := range append(c.Routers(), c.Edges()...) {
		all = append(all, n.Process)
	}
	return all
}

// Close kills what still runs. Idempotent.
func (c *Cluster) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	c.conns = nil
	all := c.Processes()
	for i := len(all) - 1; i >= 0; i-- {
		errs = append(errs, all[i].Kill())
	}
	if c.pg != nil {
		errs = append(errs, c.pg.Remove())
		c.pg = nil
	}
	if c.ownDir {
		errs = append(errs, os.RemoveAll(c.cfg.Dir))
	}
	return errors.Join(errs...)
}
