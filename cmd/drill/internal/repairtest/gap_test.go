package repairtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/drill/internal/clustertest"
	"github.com/spillway-io/spillway/gateway"
	gatewaybus "github.com/spillway-io/spillway/gateway/bus"
	"github.com/spillway-io/spillway/gateway/client"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/upstream"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/nats/natsserver"
	"github.com/spillway-io/spillway/presence/peers"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router"
	routerbus "github.com/spillway-io/spillway/router/bus"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/table"
)

// lossy is the router's bus; what it is given while it loses goes nowhere.
type lossy struct {
	table.Bus
	lose atomic.Bool
}

func (b *lossy) Publish(e *gatewayv1.Envelope) {
	if !b.lose.Load() {
		b.Bus.Publish(e)
	}
}

// pair is a router and an edge over a real NATS server, in this process.
type pair struct {
	t   *testing.T
	bus *lossy
	url string
	pub routerv1.PublisherServiceClient
	his routerv1.HistoryServiceClient
}

func startPair(t *testing.T, change func(*router.Config)) *pair {
	t.Helper()
	server, err := natsserver.Start(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	connect := func() *nats.Conn {
		conn, err := nats.Connect(server.URL(), nats.MaxReconnects(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	p := &pair{t: t, bus: new(lossy)}
	address := p.startRouter(connect(), change)
	p.startEdge(connect(), address)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p.pub, p.his = routerv1.NewPublisherServiceClient(conn), routerv1.NewHistoryServiceClient(conn)
	return p
}

// running runs a part until the test ends.
func (p *pair) running(part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }() // ended and waited for below
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	})
}

func members(address string) *alone {
	a := &alone{
		snapshot: presence.NewSnapshot([]*presence.Member{routerMember(address)}, 1), never: make(chan struct{}), joined: make(chan struct{}),
	}
	close(a.joined)
	return a
}

func (p *pair) startRouter(conn *nats.Conn, change func(*router.Config)) (address string) {
	p.t.Helper()
	rbc := routerbus.Default()
	rbc.Prefix = "spillway"
	fan, err := routerbus.New(rbc, conn)
	if err != nil {
		p.t.Fatal(err)
	}
	p.bus.Bus = fan
	p.running(fan.Run)
	cfg := router.Default()
	cfg.ID, cfg.API.Listen, cfg.OwnerRecheck, cfg.DrainDelay = "r1", "127.0.0.1:0", 0, 0
	change(&cfg)
	others := peers.New(peers.Config{})
	p.t.Cleanup(others.Close)
	r, err := router.New(cfg, router.Deps{Store: memory.New(memory.Default()), Bus: p.bus, Members: members(""), Peers: others})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := r.Listen(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.running(r.Run)
	return r.Addr()
}

func (p *pair) startEdge(conn *nats.Conn, router string) {
	p.t.Helper()
	view := members(router)
	conns := peers.New(peers.Config{})
	p.t.Cleanup(conns.Close)
	uc := upstream.Default()
	uc.Edge, uc.View, uc.Peers = "edge-1", view, conns
	up, err := upstream.New(uc)
	if err != nil {
		p.t.Fatal(err)
	}
	p.running(up.Run)
	fc := feed.Default()
	bc := gatewaybus.Default()
	bc.Prefix, bc.Shards = "spillway", fc.ShardCount()
	channels, err := gatewaybus.New(bc, conn)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := gateway.Default()
	cfg.ID, cfg.Listen, cfg.Anonymous, cfg.Loops = "edge-1", "127.0.0.1:0", true, 2
	cfg.DrainDeadline, cfg.CloseWait = time.Second, time.Second
	e, err := gateway.New(cfg, gateway.Deps{Bus: channels, Asker: up, Upstream: up, Members: view, View: view, Feed: &fc})
	if err != nil {
		p.t.Fatal(err)
	}
	p.running(func(ctx context.Context) error { return e.Run(ctx, ctx) })
	p.url = "ws://" + e.Addr() + "/v1/ws"
}

func (p *pair) publish(channel string, n int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	for range n {
		_, err := p.pub.Publish(ctx, &routerv1.PublishRequest{Publication: &routerv1.Publication{
			Channel: channel, Data: &routerv1.Publication_Json{Json: `1`},
		}})
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// listener is a client's subscription: the offsets that came and the gaps, in order.
type listener struct {
	mu    sync.Mutex // guards below
	heard []string
	last  uint64
	gaps  int
}

func (p *pair) listen(channel string) *listener {
	p.t.Helper()
	l := new(listener)
	c, err := client.New(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	sub, err := c.Subscribe(channel, client.Handler{
		OnEvent: func(e client.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.heard, l.last = append(l.heard, fmt.Sprint(e.Offset)), e.Offset
		},
		OnGap: func(g client.Gap) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.heard, l.last = append(l.heard, fmt.Sprintf("gap to %d: %s", g.Offset, g.Reason)), g.Offset
			l.gaps++
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	if err := c.Connect(ctx); err != nil {
		p.t.Fatal(err)
	}
	if err := sub.Wait(ctx); err != nil {
		p.t.Fatal(err)
	}
	return l
}

// What nobody can bring back is announced to every conn, once for each channel, and only
// as far as it is lost; what comes after it is delivered.
func TestWhatCannotBeRepairedIsAnnouncedOnceToEveryConn(t *testing.T) {
	p := startPair(t, func(c *router.Config) {
		c.Namespaces = map[string]namespace.Namespace{
			"kept":     {HistorySize: 1000, Recover: true, Subscribe: namespace.Everyone},
			"short":    {HistorySize: 3, Recover: true, Subscribe: namespace.Everyone},
			"cursor":   {HistorySize: 1000, Recover: false, Subscribe: namespace.Everyone},
			"volatile": {Durability: namespace.None, Recover: true, Subscribe: namespace.Everyone},
		}
		c.TrimEvery, c.TailAge, c.TailEvents = 50*time.Millisecond, time.Nanosecond, 3
	})
	for _, c := range []struct {
		channel string
		what    string
		lost    int
		want    []string
	}{
		{"kept:a", "history has it all", 8, []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}},
		{"short:a", "retention took the beginning", 8, nil}, // it comes when it comes, and may take one more
		{"cursor:a", "the namespace recovers nothing", 8, []string{"1", "gap to 9: no_history", "10"}},
		{"volatile:a", "the owner's tail no longer has the beginning", 8, []string{"1", "gap to 7: history", "8", "9", "10"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			listeners := []*listener{p.listen(c.channel), p.listen(c.channel), p.listen(c.channel), p.listen(c.channel)}
			p.publish(c.channel, 1)
			for _, l := range listeners {
				clustertest.Eventually(t, 10*time.Second, "the first event is there", func() bool { return l.at() == 1 })
			}
			p.bus.lose.Store(true)
			p.publish(c.channel, c.lost)
			if c.channel == "short:a" {
				clustertest.Eventually(t, 10*time.Second, "retention has been there", func() bool {
					page, err := p.his.ReadHistory(t.Context(), &routerv1.ReadHistoryRequest{Channel: c.channel, Limit: 1})
					return err == nil && page.First >= 7
				})
			}
			p.bus.lose.Store(false)
			p.publish(c.channel, 1)
			for i, l := range listeners {
				clustertest.Eventually(t, 10*time.Second, "the last event is there", func() bool { return l.at() == 10 })
				l.mu.Lock()
				t.Logf("conn %d: %v", i, l.heard)
				if c.want != nil && !slices.Equal(l.heard, c.want) {
					t.Errorf("conn %d heard %v, want %v", i, l.heard, c.want)
				}
				if c.want == nil && (l.gaps != 1 || !l.contiguous()) {
					t.Errorf("conn %d heard %v, want one gap and then every event", i, l.heard)
				}
				l.mu.Unlock()
			}
		})
	}
}

func (l *listener) at() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// contiguous says that each event follows what was heard before; l.mu is held.
func (l *listener) contiguous() bool {
	at := uint64(0)
	for _, h := range l.heard {
		var offset uint64
		if n, _ := fmt.Sscanf(h, "gap to %d", &offset); n == 0 {
			if fmt.Sscan(h, &offset); offset != at+1 {
				return false
			}
		}
		at = offset
	}
	return true
}
