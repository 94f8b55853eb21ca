package torture

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/cmd/drill/internal/torture/busproxy"
	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgserver"
)

// Namespaces; see the package comment.
const (
	kept  = "kept"
	brief = "brief"
	split = "split"
	loose = "loose"
)

const namespaces = `{
  kept: {publish: everyone, subscribe: everyone, history_size: 0, history_ttl: 0s},
  brief: {publish: everyone, subscribe: everyone, history_size: 0, history_ttl: 0s},
  split: {publish: everyone, subscribe: everyone, history_size: 0, history_ttl: 0s},
  loose: {publish: everyone, subscribe: everyone, durability: none},
  mixed: {publish: everyone, subscribe: everyone, history_size: 0, history_ttl: 0s},
  forgets: {publish: everyone, subscribe: everyone}, unfence: {publish: everyone, subscribe: everyone},
  keyless: {publish: everyone, subscribe: everyone}, lagging: {publish: everyone, subscribe: everyone}}`

func namespace(channel string) string { return history.Namespace(channel) }

// plan says what a trial has.
type plan struct {
	seed       uint64
	store      string // cluster.SQLite or cluster.Postgres
	edges      int
	publishers int
	watchers   int      // of each kind
	namespaces []string // nil: those of a trial without broken parts
	breaks     string
	mangles    map[string]func(line []byte) [][]byte // broken edges, by the name of the watcher that has one
	catchUp    time.Duration
}

// router is one with a connection of ours.
type router struct {
	*cluster.Node
	conn *grpc.ClientConn
}

// trial is one cluster under faults.
type trial struct {
	t    *testing.T
	plan plan
	rec  *recorder
	c    *cluster.Cluster

	routers  []*router // those of the membership first, then the stranger
	members  int       // of the membership
	poisoned bool      // the database refuses poison
	store    history.Store
	channels *channels
	heads    heads
	over     chan struct{} // closed when all is over, and watchers leave

	mu      sync.Mutex // guards all below
	proxies map[string]*busproxy.Proxy
	webs    map[string]string      // addresses by router
	busy    map[string]*sync.Mutex // what one fault has at a time
	log     []string               // faults
}

// strangerName is the router that the membership does not know (PostgreSQL only).
const strangerName = "router-3"

func newTrial(t *testing.T, p plan) *trial {
	tr := &trial{t: t, plan: p, rec: newRecorder(), channels: newChannels(), over: make(chan struct{}), proxies: make(map[string]*busproxy.Proxy), webs: make(map[string]string), busy: make(map[string]*sync.Mutex)}
	tr.members = 1
	cfg := cluster.Config{
		Dir: t.TempDir(), Store: p.store, Edges: p.edges, Routers: 1, Namespaces: strings.ReplaceAll(namespaces, "\n", " "), Env: tr.env, StartTime: 2 * time.Minute,
		Edge: func(*cluster.Cluster, int) string {
			return "advertise_url: \"{url}\"\nauth: {anonymous: true}\ndrain: {deadline: 2s}\nadmission: {fresh_per_second: 1000, fresh_burst: 1000}\n"
		},
	}
	if p.store == cluster.Postgres {
		cfg.Routers, tr.members = 3, 2
	}
	c, err := cluster.Start(t.Context(), cfg)
	if errors.Is(err, pgserver.ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr.c = c
	t.Cleanup(tr.close)
	for _, n := range c.Routers() {
		tr.routers = append(tr.routers, &router{n, tr.dial(n)})
	}
	if p.store == cluster.Postgres {
		tr.openStore()
	}
	return tr
}

func (tr *trial) dial(n *cluster.Node) *grpc.ClientConn {
	quick := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}
	conn, err := grpc.NewClient("passthrough:///"+n.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}))
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// env leads each node to NATS by a proxy of its own, keeps the stranger apart and
// breaks what is to be broken.
func (tr *trial) env(c *cluster.Cluster, process string) []string {
	if process == "infra" {
		return nil
	}
	all := []string{
		"SPILLWAY_NATS__URLS=nats://" + tr.proxy(c, process).Addr(),
		"SPILLWAY_ETCD__ENDPOINTS=http://" + tr.registry(c, process).Addr(), breakVariable + "=" + tr.plan.breaks,
	}
	if strings.HasPrefix(process, "router-") {
		all = append(all, "SPILLWAY_HTTP_LISTEN="+tr.web(process))
	}
	if process == strangerName {
		all = append(all, "SPILLWAY_ETCD__PREFIX=/spillway/strangers")
	}
	return all
}

// web is where a router takes calls over HTTP.
func (tr *trial) web(router string) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.webs[router] == "" {
		port, err := process.FreePort()
		if err != nil {
			panic(err) // no port on the loopback
		}
		tr.webs[router] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return tr.webs[router]
}

// proxy is what stands between a node and the bus.
func (tr *trial) proxy(c *cluster.Cluster, process string) *busproxy.Proxy {
	return tr.listen(process, busproxy.Config{Target: c.NATSAddr(), Touch: touched})
}

// registry is what stands between a node and etcd.
func (tr *trial) registry(c *cluster.Cluster, process string) *busproxy.Proxy {
	return tr.listen("etcd of "+process, busproxy.Config{Target: c.EtcdAddr(), Raw: true})
}

func (tr *trial) listen(name string, cfg busproxy.Config) *busproxy.Proxy {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	p := tr.proxies[name]
	if p == nil {
		cfg.Seed = tr.plan.seed + uint64(len(tr.proxies))
		var err error
		if p, err = busproxy.Listen(cfg); err != nil {
			panic(err) // no port on the loopback
		}
		tr.proxies[name] = p
	}
	return p
}

// touched subjects are those of events and of what members tell all; not load figures,
// whose silence is a fault of its own (cut), nor questions and answers.
func touched(subject string) bool {
	return !strings.HasPrefix(subject, "_INBOX") && !strings.Contains(subject, ".load.") && !strings.Contains(subject, ".member.")
}

// note a fault.
func (tr *trial) note(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.log = append(tr.log, fmt.Sprintf("%9.3f ", tr.rec.now().Seconds())+fmt.Sprintf(format, args...))
}

// hold keeps other faults from a part until the returned function is called.
func (tr *trial) hold(part string) (release func()) {
	tr.mu.Lock()
	m := tr.busy[part]
	if m == nil {
		m = new(sync.Mutex)
		tr.busy[part] = m
	}
	tr.mu.Unlock()
	m.Lock()
	return m.Unlock
}

func (tr *trial) ended() bool {
	select {
	case <-tr.over:
		return true
	default:
		return false
	}
}

// strange channels are also published on by the stranger.
func strange(channel string) bool {
	ns := namespace(channel)
	return ns == split || ns == unfence
}

// router draws one that may take these drafts.
func (tr *trial) router(rng *rand.Rand, open []*draft) *router {
	n := len(tr.routers)
	if slices.ContainsFunc(open, func(d *draft) bool { return !strange(d.Channel) }) {
		n = tr.members
	}
	return tr.routers[rng.IntN(n)]
}

// urls of all edges in random order.
func (tr *trial) urls(rng *rand.Rand) (all []string) {
	for _, e := range tr.c.Edges() {
		all = append(all, e.URL())
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// channel draws one that there is.
func (tr *trial) channel(rng *rand.Rand) string {
	all := tr.channels.all()
	return all[rng.IntN(len(all))]
}

// near is an offset not far below the head.
func (tr *trial) near(channel string, rng *rand.Rand) uint64 {
	head := tr.heads.of(channel)
	return head - min(head, uint64(rng.IntN(2*pageMost)))
}

func (tr *trial) close() {
	if tr.t.Failed() {
		tr.mu.Lock()
		tr.t.Logf("seed %d; faults:\n%s", tr.plan.seed, strings.Join(tr.log, "\n"))
		tr.mu.Unlock()
		if os.Getenv("TORTURE_LOGS") != "" {
			for _, p := range tr.c.Processes() {
				tr.t.Logf("%s:\n%s", p.Name, p.LogTail(200))
			}
		}
	}
	if err := tr.c.Close(); err != nil {
		tr.t.Error(err)
	}
	for _, name := range slices.Sorted(maps.Keys(tr.proxies)) {
		_ = tr.proxies[name].Close() // never fails
	}
}

// races looks for what the race detector wrote.
func (tr *trial) races() {
	for _, p := range tr.c.Processes() {
		if text := p.LogTail(100_000); strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic:") {
			at := max(strings.Index(text, "DATA RACE"), strings.Index(text, "panic:"))
			tr.t.Errorf("%s:\n%s", p.Name, text[max(0, at-100):min(len(text), at+4000)])
		}
	}
}

// rules of a channel.
func rules(channel string) ledger.Rules {
	ns := namespace(channel)
	return ledger.Rules{Durable: ns != loose, Linear: !strange(channel)}
}

// channels are those that there are so far.
type channels struct {
	mu    sync.Mutex
	names []string
}

func newChannels() *channels { return &channels{} }

func (c *channels) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
}

func (c *channels) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.names)
}

// heads are the highest that were seen.
type heads struct {
	mu sync.Mutex
	m  map[string]uint64
}

func (h *heads) note(channel string, head uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = make(map[string]uint64)
	}
	h.m[channel] = max(h.m[channel], head)
}

func (h *heads) of(channel string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.m[channel]
}
