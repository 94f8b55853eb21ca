package handovertest

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/drill/internal/clustertest"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/gateway/client"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/namespace"
)

var rounds = flag.Int("rounds", 1, "how often all routers are restarted")

const (
	routers  = 4 // the last joins under load
	patience = 30 * time.Second
)

// kinds of namespaces: what an ack means in each.
var kinds = map[string]namespace.Durability{"kept": namespace.Committed, "loose": namespace.None}

// world is the cluster and what was published.
type world struct {
	t    *testing.T
	in   *infra.Infra
	dsn  string
	urls []string

	mu    sync.Mutex // guards below
	nodes map[string]*routerNode
	acked map[string][]string // by channel, in order
}

type routerNode struct {
	*routernode.Node
	conn  *grpc.ClientConn
	leave context.CancelFunc
	left  chan error
}

func newWorld(t *testing.T) *world {
	dsn := pgtest.Shared(t).NewDatabase(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, err := infra.Start(ctx, infra.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	w := &world{t: t, in: in, dsn: dsn, nodes: make(map[string]*routerNode), acked: make(map[string][]string)}
	t.Cleanup(w.close)
	for i := range routers - 1 {
		w.start(fmt.Sprint("router-", i+1))
	}
	for i := range 2 {
		w.edge(fmt.Sprint("edge-", i+1))
	}
	return w
}

func (w *world) start(id string) {
	w.t.Helper()
	f := routerfile.Default()
	f.ID, f.Router.API.Listen, f.OpsListen = id, "127.0.0.1:0", "127.0.0.1:0"
	f.NATS.URLs, f.Etcd.Endpoints = []string{w.in.NATSURL()}, []string{w.in.EtcdEndpoint()}
	f.Store.Postgres.DSN = w.dsn
	f.Router.Namespaces = make(map[string]namespace.Namespace)
	for name, durability := range kinds {
		f.Router.Namespaces[name] = namespace.Namespace{
			HistorySize: 100_000, HistoryTTL: time.Hour, Durability: durability, Recover: true, Subscribe: namespace.Everyone, Publish: namespace.Everyone,
		}
	}
	n, err := routernode.New(w.t.Context(), &f, routernode.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	r := &routerNode{Node: n, leave: leave, left: make(chan error, 1)}
	go func() { r.left <- n.Run(ctx, context.Background()) }() // stop ends it and waits
	if r.conn, err = grpc.NewClient(n.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.nodes[id] = r
	w.mu.Unlock()
	clustertest.Eventually(w.t, patience, id+" is ready", n.Ready)
}

// stop is a SIGTERM and the wait for the end.
func (w *world) stop(id string) {
	w.mu.Lock()
	r := w.nodes[id]
	delete(w.nodes, id)
	w.mu.Unlock()
	r.leave()
	if err := <-r.left; err != nil {
		w.t.Errorf("%s: %v", id, err)
	}
	r.conn.Close()
}

func (w *world) close() {
	for i := range routers {
		if id := fmt.Sprint("router-", i+1); w.nodes[id] != nil {
			w.stop(id)
		}
	}
}

func (w *world) edge(id string) {
	w.t.Helper()
	f := gatewayfile.Default()
	f.ID, f.Listen, f.OpsListen = id, "127.0.0.1:0", "127.0.0.1:0"
	f.NATS.URLs, f.Etcd.Endpoints = []string{w.in.NATSURL()}, []string{w.in.EtcdEndpoint()}
	f.Auth.Anonymous = true
	f.DrainDeadline = time.Second
	n, err := edgenode.New(w.t.Context(), &f, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() { left <- n.Run(ctx, context.Background()) }() // the cleanup ends it and waits
	w.t.Cleanup(func() {
		leave()
		if err := <-left; err != nil {
			w.t.Error(err)
		}
	})
	clustertest.Eventually(w.t, patience, id+" is ready", n.Ready)
	w.urls = append(w.urls, "ws://"+n.Addr()+"/v1/ws")
}

// serving is a router that is there, another for each n.
func (w *world) serving(n int) routerv1.PublisherServiceClient {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range routers {
		if r := w.nodes[fmt.Sprint("router-", (n+i)%routers+1)]; r != nil && r.Ready() {
			return routerv1.NewPublisherServiceClient(r.conn)
		}
	}
	return nil
}

// publish sends numbered events on a channel until ctx ends, each until it is acked; it
// tells the longest time that one of them took.
func (w *world) publish(ctx context.Context, channel string, nth int, longest *atomic.Int64) {
	for i := 0; ctx.Err() == nil; i++ {
		data := fmt.Sprintf(`{"n":%d}`, i)
		began := time.Now()
		for try := 0; ; try++ {
			if time.Since(began) > patience {
				w.t.Errorf("%s: %s was not acked in %v", channel, data, patience)
				return
			}
			to := w.serving(nth + i + try)
			if to == nil {
				tick(5 * time.Millisecond)
				continue
			}
			call, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := to.Publish(call, &routerv1.PublishRequest{Publication: &routerv1.Publication{
				Channel: channel, Data: &routerv1.Publication_Json{Json: data}, Key: fmt.Sprint("k", i),
			}})
			cancel()
			if err == nil {
				break
			}
			tick(5 * time.Millisecond)
		}
		took := int64(time.Since(began))
		for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); old = longest.Load() {
		}
		w.mu.Lock()
		w.acked[channel] = append(w.acked[channel], data)
		w.mu.Unlock()
		tick(20 * time.Millisecond)
	}
}

func tick(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// watcher is a client that notes what it hears.
type watcher struct {
	name string

	mu     sync.Mutex // guards below
	conns  []net.Conn
	epochs map[string]string
	offset map[string]uint64
	events map[string][]string
	joins  map[string]int
	faults []string
}

func (w *world) watch(name, url string, channels []string) *watcher {
	v := &watcher{
		name: name, epochs: make(map[string]string), offset: make(map[string]uint64), events: make(map[string][]string), joins: make(map[string]int),
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			v.mu.Lock()
			v.conns = append(v.conns, conn)
			v.mu.Unlock()
		}
		return conn, err
	}
	cl, err := client.New(url, client.WithDialer(dial), client.WithRandom(func(d time.Duration) time.Duration { return d / 4 }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { cl.Close() })
	for _, channel := range channels {
		if _, err := cl.Subscribe(channel, v.handler(channel)); err != nil {
			w.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := cl.Connect(ctx); err != nil {
		w.t.Fatal(err)
	}
	for _, channel := range channels {
		if err := cl.Subscription(channel).Wait(ctx); err != nil {
			w.t.Fatalf("%s: %v", channel, err)
		}
	}
	return v
}

func (v *watcher) handler(channel string) client.Handler {
	fault := func(format string, args ...any) {
		v.faults = append(v.faults, v.name+": "+channel+": "+fmt.Sprintf(format, args...))
	}
	return client.Handler{
		OnSubscribed: func(s client.Subscribed) {
			v.mu.Lock()
			defer v.mu.Unlock()
			if s.Pending {
				return
			}
			if v.joins[channel]++; v.joins[channel] == 1 {
				v.epochs[channel], v.offset[channel] = s.Epoch, s.Offset
			} else if !s.Recovered {
				fault("recovered=false: at %s %d, was at %s %d", s.Epoch, s.Offset, v.epochs[channel], v.offset[channel])
			}
		},
		OnEvent: func(e client.Event) {
			v.mu.Lock()
			defer v.mu.Unlock()
			if e.Offset != v.offset[channel]+1 || e.Epoch != v.epochs[channel] {
				fault("%s %d after %s %d", e.Epoch, e.Offset, v.epochs[channel], v.offset[channel])
			}
			v.epochs[channel], v.offset[channel] = e.Epoch, e.Offset
			v.events[channel] = append(v.events[channel], string(e.Data))
		},
		OnGap: func(g client.Gap) {
			v.mu.Lock()
			defer v.mu.Unlock()
			fault("gap: %s", g.Reason)
		},
	}
}

// cut closes what connections there are.
func (v *watcher) cut() {
	v.mu.Lock()
	conns := v.conns
	v.conns = nil
	v.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// has counts what was heard of a channel.
func (v *watcher) has(channel string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.events[channel]...)
}

// A router that joins under load, and then a rolling restart of all, is not seen by
// anybody: no gap, no recovered=false, nothing lost, doubled or out of order, in any
// namespace.
func TestJoinAndRollingRestartOfRoutersAreNotSeen(t *testing.T) {
	w := newWorld(t)
	var channels []string
	for kind := range kinds {
		for i := range 6 {
			channels = append(channels, fmt.Sprintf("%s:%d", kind, i))
		}
	}
	var watchers []*watcher
	for i := range 4 {
		watchers = append(watchers, w.watch(fmt.Sprint("client ", i), w.urls[i%len(w.urls)], channels))
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var longest atomic.Int64
	for i, channel := range channels {
		load.Go(func() { w.publish(ctx, channel, i, &longest) }) // ends with ctx
	}
	load.Go(func() { // half of the clients come back all the time; ends with ctx
		for i := 0; ctx.Err() == nil; i++ {
			tick(200 * time.Millisecond)
			watchers[i%2].cut()
		}
	})
	tick(300 * time.Millisecond)
	began := time.Now()
	w.start(fmt.Sprint("router-", routers))
	tick(300 * time.Millisecond)
	joined := time.Duration(longest.Load())
	for range *rounds {
		for i := range routers {
			id := fmt.Sprint("router-", i+1)
			w.stop(id)
			tick(200 * time.Millisecond)
			w.start(id)
			tick(200 * time.Millisecond)
		}
	}
	took := time.Since(began)
	stop()
	load.Wait()
	acked, joins := 0, 0
	for _, v := range watchers {
		for _, channel := range channels {
			want := w.acked[channel]
			clustertest.Eventually(t, patience, fmt.Sprintf("%s has all of %s", v.name, channel), func() bool { return len(v.has(channel)) >= len(want) })
			if got := v.has(channel); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %s: heard %d, acked %d", v.name, channel, len(got), len(want))
			}
			acked += len(want)
			joins += v.joins[channel]
		}
		for _, fault := range v.faults {
			t.Error(fault)
		}
	}
	pause := time.Duration(longest.Load())
	if pause > 10*time.Second {
		t.Errorf("a publish took %v", pause)
	}
	t.Logf("join and restarts took %v; %d events acked, %d subscriptions; longest publish %v, at the join %v",
		took.Round(time.Millisecond), acked/len(watchers), joins, pause.Round(time.Millisecond), joined.Round(time.Millisecond))
}
