package clustertest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/torture/busproxy"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

var long = flag.Bool("long", false, "cuts last 20 s")

// startRepair runs a cluster whose processes reach the NATS server that url names.
func startRepair(t *testing.T, cfg cluster.Config, url func(c *cluster.Cluster, process string) string) *testCluster {
	t.Helper()
	cfg.Binary = []string{binary}
	cfg.Namespaces = "{chat: {publish: everyone, subscribe: everyone}}"
	cfg.Edge = func(*cluster.Cluster, int) string {
		return "advertise_url: \"{url}\"\nauth: {anonymous: true}\ndrain: {deadline: 3s}\n"
	}
	cfg.Env = func(c *cluster.Cluster, process string) []string {
		if u := url(c, process); u != "" {
			return []string{"SPILLWAY_NATS__URLS=" + u}
		}
		return nil
	}
	return &testCluster{Start(t, cfg), t}
}

// times is when a watcher first had an event of each channel, polled each 5 ms.
func (w *watcher) times(ctx context.Context, channels []string, offset uint64) map[string]time.Time {
	at := make(map[string]time.Time)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(at) < len(channels) && ctx.Err() == nil {
		w.mu.Lock()
		for _, channel := range channels {
			if _, have := at[channel]; !have && w.offset[channel] >= offset {
				at[channel] = time.Now()
			}
		}
		w.mu.Unlock()
		<-tick.C
	}
	return at
}

// The owner of some channels acks an event of each and is killed before anything of it
// has reached the bus. Nothing is published after it, so no hole shows: the heads must
// be asked for. What the owner says to the bus ends in a proxy from just before the
// publish on; the router itself is as it is in production.
func TestAnOwnerKilledBetweenAckAndFanOutLosesNothing(t *testing.T) {
	var proxy *busproxy.Proxy
	var once sync.Once
	c := startRepair(t, cluster.Config{Store: cluster.Postgres, Edges: 3}, func(c *cluster.Cluster, process string) string {
		if process != "router-2" {
			return ""
		}
		once.Do(func() {
			var err error
			if proxy, err = busproxy.Listen(busproxy.Config{Target: c.NATSAddr()}); err != nil {
				panic(err) // no port on the loopback
			}
		})
		return "nats://" + proxy.Addr()
	})
	t.Cleanup(func() { proxy.Close() })
	c.waitForNodes(5)

	routers := presence.NewSnapshot([]*presence.Member{
		{Id: "router-1", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING},
		{Id: "router-2", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING},
	}, 1)
	var all []string
	for i := 0; len(all) < 20; i++ {
		if channel := fmt.Sprint("chat:killed-", i); routers.Owner(channel).Id == "router-2" {
			all = append(all, channel)
		}
	}
	p := c.publisher("router-1") // sends them on to the owner
	var watchers []*watcher
	for i := range 3 {
		watchers = append(watchers, c.watch(all, c.url(fmt.Sprint("edge-", i+1))))
	}
	p.run(all, 0, 1)
	for i, w := range watchers {
		w.verify(t, fmt.Sprint("watcher ", i+1), p)
	}
	settled := time.NewTimer(2 * time.Second) // checks of new interests and quiet heads are over
	<-settled.C

	proxy.Cut(true)
	p.run(all, 1, 1)
	acked := time.Now()
	c.kill(c.node("router-2").Process)
	killed := time.Now()
	proxy.Cut(false) // and what it said is gone with it
	proxy.Mend()
	for _, w := range watchers {
		w.mu.Lock()
		for _, channel := range all {
			if w.offset[channel] > 1 {
				t.Errorf("%s was fanned out before the owner was killed: the test shows nothing", channel)
			}
		}
		w.mu.Unlock()
	}
	t.Logf("killed %v after the last ack", killed.Sub(acked).Round(time.Millisecond))

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i, w := range watchers {
		wg.Go(func() {
			var first, last time.Duration
			for _, at := range w.times(ctx, all, 2) {
				d := at.Sub(killed)
				if last = max(last, d); first == 0 || d < first {
					first = d
				}
			}
			t.Logf("watcher %d had the %d events %v to %v after the kill (promised: 3 s of silence, then 5 s)", i+1, len(all), first.Round(time.Millisecond), last.Round(time.Millisecond))
		})
	}
	wg.Wait()
	for i, w := range watchers {
		w.mu.Lock()
		for _, channel := range all {
			if w.offset[channel] != 2 {
				t.Errorf("watcher %d: %s stands at %d, 20 s after the kill", i+1, channel, w.offset[channel])
			}
		}
		w.mu.Unlock()
		w.verify(t, fmt.Sprint("watcher ", i+1), p)
	}
}

// route is the way between two NATS servers; it can be cut.
type route struct {
	ln      net.Listener
	to      string
	running sync.WaitGroup

	mu    sync.Mutex // guards below
	cut   bool
	conns []net.Conn
}

func newRoute(t *testing.T, to string) *route {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &route{ln: ln, to: to}
	r.running.Go(r.accept) // ends with the listener; the cleanup waits
	t.Cleanup(func() {
		ln.Close()
		r.set(true)
		r.running.Wait()
	})
	return r
}

func (r *route) accept() {
	for {
		near, err := r.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.to)
		if err != nil {
			near.Close()
			continue
		}
		r.mu.Lock()
		if r.cut {
			near.Close()
			far.Close()
		}
		r.conns = append(r.conns, near, far)
		r.mu.Unlock()
		// Each ends when either half is closed; the cleanup waits.
		r.running.Go(func() { io.Copy(near, far); near.Close(); far.Close() })
		r.running.Go(func() { io.Copy(far, near); near.Close(); far.Close() })
	}
}

func (r *route) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut = cut; cut {
		for _, c := range r.conns {
			c.Close()
		}
		r.conns = nil
	}
}

// startNATS runs a server of a cluster; via is the way to another one, if there is one.
func startNATS(t *testing.T, name, via string) *server.Server {
	t.Helper()
	opts := &server.Options{
		ServerName: name, Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, MaxPayload: 1 << 20,
		Cluster: server.ClusterOpts{Name: "spillway", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoAdvertise: true},
	}
	if via != "" {
		opts.Routes = server.RoutesFromStr("nats-route://" + via)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("nats is not ready")
	}
	return s
}

// The route between two NATS servers is cut while every process stays connected to its
// own: nobody is told, and neither events nor repeated heads nor load figures cross. The
// edge beyond the cut fetches what is published meanwhile, and hears live events again
// when the route is back.
func TestACutRouteBetweenNATSServersLosesNothing(t *testing.T) {
	cut := 8 * time.Second
	if *long {
		cut = 20 * time.Second
	}
	near := startNATS(t, "near", "")
	way := newRoute(t, near.ClusterAddr().String())
	far := startNATS(t, "far", way.ln.Addr().String())
	joined := func() bool { return near.NumRoutes() > 0 && far.NumRoutes() > 0 }
	Eventually(t, 20*time.Second, "the route is up", joined)
	c := startRepair(t, cluster.Config{Store: cluster.SQLite, Edges: 2}, func(_ *cluster.Cluster, process string) string {
		switch process {
		case "infra":
			return ""
		case "edge-2":
			return far.ClientURL()
		}
		return near.ClientURL()
	})
	Eventually(t, 60*time.Second, "all are members", func() bool { return len(c.nodes("router-1")) == 3 })
	all := channels(20)
	p := c.publisher("router-1")
	here, beyond := c.watch(all, c.url("edge-1")), c.watch(all, c.url("edge-2"))
	p.run(all, 0, 2)
	here.verify(t, "the client on this side", p)
	beyond.verify(t, "the client beyond", p)
	clients := near.NumClients() + far.NumClients()

	way.set(true)
	began := time.Now()
	Eventually(t, 10*time.Second, "the route is down", func() bool { return near.NumRoutes() == 0 && far.NumRoutes() == 0 })
	var delays []time.Duration
	n := 2
	for ; time.Since(began) < cut; n++ {
		p.run(all, n, 1)
		published := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // the round of all heads takes 30
		at := beyond.times(ctx, all, uint64(n+1))
		cancel()
		if len(at) < len(all) {
			t.Fatalf("%d of %d events of one moment crossed in 40 s", len(at), len(all))
		}
		last := time.Duration(0)
		for _, when := range at {
			last = max(last, when.Sub(published))
		}
		delays = append(delays, last.Round(time.Millisecond))
	}
	if now := near.NumClients() + far.NumClients(); now != clients {
		t.Errorf("%d clients of NATS before the cut, %d in it", clients, now)
	}
	t.Logf("while the route was cut, the slowest of %d events after each publish: %v", len(all), delays)
	p.run(all, n, 1) // crosses by repair too, or when the route is back
	n++

	way.set(false)
	returned := time.Now()
	beyond.verify(t, "the client beyond", p)
	t.Logf("%v after the way was open again the last event of the cut was there", time.Since(returned).Round(time.Millisecond))
	Eventually(t, 60*time.Second, "the route is up", joined)
	t.Logf("the route was up after %v", time.Since(returned).Round(time.Millisecond))
	for range 3 {
		p.run(all, n, 1)
		n++
		published := time.Now()
		beyond.verify(t, "the client beyond", p)
		t.Logf("an event of each channel beyond after %v", time.Since(published).Round(time.Millisecond))
	}
	here.verify(t, "the client on this side", p)
}
