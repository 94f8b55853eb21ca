package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/gateway/client"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "spillway-cluster-")
	if err != nil {
		panic(err)
	}
	if binary, err = process.Build("cmd/spillway", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// testCluster is NATS, etcd, PostgreSQL, two routers and three edges, each a process.
type testCluster struct {
	*cluster.Cluster
	t *testing.T
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func newCluster(t *testing.T) *testCluster {
	t.Helper()
	c := Start(t, cluster.Config{
		Binary: []string{binary}, Store: cluster.Postgres, Edges: 3, SeparateInfra: true,
		Namespaces: "{chat: {publish: everyone, subscribe: everyone}}",
		Edge: func(*cluster.Cluster, int) string {
			return "advertise_url: \"{url}\"\nauth: {anonymous: true}\ndrain: {deadline: 3s}\n"
		},
	})
	tc := &testCluster{c, t}
	tc.waitForNodes(5)
	return tc
}

// node is a router or an edge by its id.
func (c *testCluster) node(id string) *cluster.Node {
	c.t.Helper()
	for _, n := range append(c.Routers(), c.Edges()...) {
		if n.ID == id {
			return n
		}
	}
	c.t.Fatalf("no node %s", id)
	return nil
}

func (c *testCluster) url(edge string) string { return c.node(edge).URL() }

func (c *testCluster) kill(p *process.Process) {
	c.t.Helper()
	if err := p.Kill(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCluster) dial(router string) *grpc.ClientConn {
	c.t.Helper()
	conn, err := c.Dial(c.node(router))
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// nodes is what a router's view holds: id to state.
func (c *testCluster) nodes(router string) map[string]string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := routerv1.NewAdminServiceClient(c.dial(router)).ListNodes(ctx, &routerv1.ListNodesRequest{})
	if err != nil {
		return nil
	}
	all := make(map[string]string)
	for _, n := range resp.Nodes {
		all[n.Id] = n.State
	}
	return all
}

func (c *testCluster) waitForNodes(n int) {
	c.t.Helper()
	Eventually(c.t, 60*time.Second, fmt.Sprintf("both routers see %d nodes", n), func() bool {
		return len(c.nodes("router-1")) == n && len(c.nodes("router-2")) == n
	})
}

// publisher publishes numbered events, each again with its key until it is acked.
type publisher struct {
	t      *testing.T
	client routerv1.PublisherServiceClient
	mu     sync.Mutex // guards acked
	acked  map[string][]string
}

func (c *testCluster) publisher(router string) *publisher {
	return &publisher{t: c.t, client: routerv1.NewPublisherServiceClient(c.dial(router)), acked: make(map[string][]string)}
}

func (p *publisher) publish(channel string, n int) {
	data := fmt.Sprintf(`{"n":%d}`, n)
	deadline := time.Now().Add(90 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := p.client.Publish(ctx, &routerv1.PublishRequest{Publication: &routerv1.Publication{
			Channel: channel, Data: &routerv1.Publication_Json{Json: data}, Key: fmt.Sprint("k", n),
		}})
		cancel()
		if err == nil {
			p.mu.Lock()
			p.acked[channel] = append(p.acked[channel], data)
			p.mu.Unlock()
			return
		}
		if time.Now().After(deadline) {
			p.t.Errorf("%s %d was never acked: %v", channel, n, err)
			return
		}
	}
}

// run publishes n events on each channel, in order within each.
func (p *publisher) run(channels []string, from, n int) {
	var wg sync.WaitGroup
	for _, channel := range channels {
		wg.Go(func() {
			for i := from; i < from+n; i++ {
				p.publish(channel, i)
			}
		})
	}
	wg.Wait()
}

// watcher is a client of the Go SDK that notes what it hears.
type watcher struct {
	client *client.Client
	mu     sync.Mutex // guards all below
	events map[string][]string
	offset map[string]uint64
	faults []string
	states int
}

func (c *testCluster) watch(channels []string, urls ...string) *watcher {
	c.t.Helper()
	w := &watcher{events: make(map[string][]string), offset: make(map[string]uint64)}
	cl, err := client.New(urls[0], client.WithURLs(urls[1:]...), client.WithOnState(func(s client.StateChange) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.To == client.Reconnecting {
			w.states++
		}
	}))
	if err != nil {
		c.t.Fatal(err)
	}
	w.client = cl
	c.t.Cleanup(func() { cl.Close() })
	for _, channel := range channels {
		_, err := cl.Subscribe(channel, client.Handler{
			OnSubscribed: func(s client.Subscribed) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if _, known := w.offset[channel]; !known && !s.Pending {
					w.offset[channel] = s.Offset
				}
			},
			OnEvent: func(e client.Event) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if last := w.offset[channel]; e.Offset != last+1 {
					w.faults = append(w.faults, fmt.Sprintf("%s: %d after %d", channel, e.Offset, last))
				}
				w.offset[channel] = e.Offset
				w.events[channel] = append(w.events[channel], string(e.Data))
			},
			OnGap: func(g client.Gap) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.faults = append(w.faults, fmt.Sprintf("%s: gap to %d: %s", channel, g.Offset, g.Reason))
			},
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := cl.Connect(ctx); err != nil {
		c.t.Fatal(err)
	}
	for _, channel := range channels {
		if err := cl.Subscription(channel).Wait(ctx); err != nil {
			c.t.Fatalf("%s: %v", channel, err)
		}
	}
	return w
}

// verify wants exactly what was acked, in order, and nothing lost or doubled.
func (w *watcher) verify(t *testing.T, name string, p *publisher) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for channel, acked := range p.acked {
		Eventually(t, 60*time.Second, fmt.Sprintf("%s has %d events of %s", name, len(acked), channel), func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.events[channel]) >= len(acked)
		})
		w.mu.Lock()
		if got, want := strings.Join(w.events[channel], " "), strings.Join(acked, " "); got != want {
			t.Errorf("%s: %s:\ngot  %s\nwant %s", name, channel, got, want)
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.faults) > 0 {
		t.Errorf("%s: %v", name, w.faults)
	}
}

func channels(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint("chat:room-", i))
	}
	return all
}

func TestAClusterOfProcessesLosesNothing(t *testing.T) {
	c := newCluster(t)
	all := channels(6)
	p := c.publisher("router-1")
	var watchers []*watcher
	for i := range 3 {
		edges := []string{c.url(fmt.Sprint("edge-", i+1)), c.url(fmt.Sprint("edge-", (i+1)%3+1)), c.url(fmt.Sprint("edge-", (i+2)%3+1))}
		watchers = append(watchers, c.watch(all, edges...))
	}
	p.run(all, 0, 20)

	// A router dies while events are published through the other.
	published := make(chan struct{})
	go func() { p.run(all, 20, 200); close(published) }() // ends when all are acked
	c.kill(c.Routers()[1].Process)
	<-published
	for i, w := range watchers {
		w.verify(t, fmt.Sprint("watcher ", i+1), p)
	}

	// An edge dies: its client comes back on another and misses nothing.
	published = make(chan struct{})
	go func() { p.run(all, 220, 100); close(published) }() // ends when all are acked
	c.kill(c.Edges()[0].Process)
	<-published
	for i, w := range watchers {
		w.verify(t, fmt.Sprint("watcher ", i+1), p)
	}
	if info := watchers[0].client.Info(); info.Node == "edge-1" || info.Node == "" {
		t.Errorf("the client of the dead edge is on %q", info.Node)
	}
}

// outage is, in CI, longer than the time after which the clients of NATS and etcd give
// up by themselves (120 s); else longer than a lease.
func outage() time.Duration {
	if os.Getenv("CI") == "true" {
		return 150 * time.Second
	}
	return 15 * time.Second
}

func TestNATSAndEtcdMayVanish(t *testing.T) {
	c := newCluster(t)
	all := channels(4)
	p := c.publisher("router-1")
	early := c.watch(all, c.url("edge-1"))
	p.run(all, 0, 10)
	early.verify(t, "before", p)
	before := c.nodes("router-1")
	epochs := c.epochs(all)

	for _, p := range c.Infra() {
		c.kill(p)
	}
	away := time.NewTimer(outage())
	// Meanwhile publishes are acked, and new clients come in and get history.
	p.run(all, 10, 10)
	late := c.watch(all, c.url("edge-2"))
	<-away.C
	for _, p := range c.Infra() {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	p.run(all, 20, 10)
	early.verify(t, "the client from before", p)
	late.mu.Lock()
	if late.states > 0 {
		t.Error("the late client lost its socket")
	}
	late.mu.Unlock()
	early.mu.Lock()
	if early.states > 0 {
		t.Errorf("a socket closed %d times", early.states)
	}
	early.mu.Unlock()
	settle := time.NewTimer(12 * time.Second) // a lease's life after the return
	<-settle.C
	if after := c.nodes("router-1"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("members before %v, after %v", before, after)
	}
	if after := c.epochs(all); fmt.Sprint(after) != fmt.Sprint(epochs) {
		t.Errorf("epochs before %v, after %v", epochs, after)
	}
	p.run(all, 30, 5)
	early.verify(t, "the client from before", p)
	Eventually(t, 30*time.Second, "the client from meanwhile has the newest events", func() bool {
		late.mu.Lock()
		defer late.mu.Unlock()
		for _, channel := range all {
			if late.offset[channel] != 35 {
				return false
			}
		}
		return true
	})
	late.mu.Lock()
	defer late.mu.Unlock()
	if len(late.faults) > 0 {
		t.Errorf("the client from meanwhile: %v", late.faults)
	}
}

func (c *testCluster) epochs(channels []string) map[string]string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	h := routerv1.NewHistoryServiceClient(c.dial("router-1"))
	all := make(map[string]string)
	for _, channel := range channels {
		page, err := h.ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: channel, Limit: 1})
		if err != nil {
			c.t.Fatal(err)
		}
		all[channel] = page.Epoch
	}
	return all
}

// run runs one command of the command line and returns its output and exit code.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

func TestMistakesAreOneLineAndExitTwo(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("colour: red\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"dev", "--edges", "1", "--grpc-port", taken, "--ws-port", "0", "--http-port", "0", "--ops-port", "0"},
		{"dev", "--edges", "1", "--grpc-port", "0", "--ws-port", taken, "--http-port", "0", "--ops-port", "0"},
		{"infra", "--nats-port", taken}, {"infra", "--only", "etcd", "--etcd-port", taken},
		{"dev", "--nonsense"}, {"dance"}, {"publish", "chat:a", "not json"}, {"publish", "", "1"},
		{"subscribe", "chat:a", "--since", "x"}, {"gateway", "--config", bad}, {"router", "--config", "/nowhere.yaml"},
	} {
		out, code := run(t, args...)
		if code != 2 || strings.Count(strings.TrimSpace(out), "\n") != 0 || strings.Contains(out, "goroutine") {
			t.Errorf("spillway %s: exit %d, printed\n%s", strings.Join(args, " "), code, out)
		}
	}
}

// dev is a `spillway dev` on ports of its own.
func TestDevRunsTheMainJobAndStopsCleanly(t *testing.T) {
	grpcPort, wsPort := freePort(t), freePort(t)
	tmp := t.TempDir()
	up := make(chan struct{})
	dev, err := process.Start(process.Config{
		Name: "dev", Env: []string{"TMPDIR=" + tmp},
		Command: []string{binary, "dev", "--edges", "1", "--grpc-port", fmt.Sprint(grpcPort), "--ws-port", fmt.Sprint(wsPort), "--http-port", "0", "--ops-port", "0"},
		Line: func(line []byte) {
			if bytes.HasPrefix(line, []byte("ctrl-C")) {
				close(up)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Kill()
	select {
	case <-up:
	case <-dev.Done():
	}
	server, edge := fmt.Sprintf("127.0.0.1:%d", grpcPort), fmt.Sprintf("ws://127.0.0.1:%d/v1/ws", wsPort)
	got := make(chan client.Event, 10)
	cl, err := client.New(edge)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	sub, err := cl.Subscribe("any:name", client.Handler{OnEvent: func(e client.Event) { got <- e }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := cl.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	if err := sub.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if out, code := run(t, "publish", "--server", server, "any:name", `{ "big" : 9007199254740993 }`); code != 0 {
		t.Fatalf("publish: %d %s", code, out)
	}
	select {
	case e := <-got:
		if string(e.Data) != `{"big":9007199254740993}` {
			t.Errorf("delivered %s", e.Data)
		}
	case <-ctx.Done():
		t.Fatal("the event did not come")
	}
	out, code := run(t, "history", "--server", server, "--json", "any:name")
	var line map[string]any
	if code != 0 || json.Unmarshal([]byte(out), &line) != nil || line["offset"] != 1.0 {
		t.Errorf("history: %d %s", code, out)
	}
	if out, code := run(t, "nodes", "--server", server); code != 0 || !strings.Contains(out, "edge-1") {
		t.Errorf("nodes: %d %s", code, out)
	}
	cl.Close()
	if err := dev.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if <-dev.Done(); dev.ExitCode() != 0 {
		t.Errorf("dev ended with %d", dev.ExitCode())
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("dev left %v behind", left)
	}
}
