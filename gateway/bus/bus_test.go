package bus

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
	"github.com/spillway-io/spillway/proto/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startServer(t *testing.T, port int) *natsserver.Server {
	t.Helper()
	s, err := natsserver.Start(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func newBus(t *testing.T, conn *nats.Conn, queue int) *Bus {
	t.Helper()
	cfg := Default()
	cfg.Prefix, cfg.Shards = "spillway", 2
	if queue > 0 {
		cfg.Queue = queue
	}
	b, err := New(cfg, conn)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// receive takes n messages of a shard.
func receive(t *testing.T, b *Bus, shard, n int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := make(map[string]int)
	for taken := 0; taken < n; {
		messages, err := b.Receive(ctx, shard, make([][]byte, 0, 64))
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", taken, n, err)
		}
		for _, m := range messages {
			got[string(m)]++
			taken++
		}
	}
	return got
}

func publish(t *testing.T, conn *nats.Conn, channel string) {
	t.Helper()
	if err := conn.Publish(wire.Subject("spillway", channel), []byte(channel)); err != nil {
		t.Fatal(err)
	}
}

func flush(t *testing.T, conns ...*nats.Conn) {
	t.Helper()
	for _, conn := range conns {
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

func name(i int) string { return fmt.Sprintf("chat:room.%d *", i) }

func TestAThousandChannelsSurviveAReconnect(t *testing.T) {
	server := startServer(t, 0)
	port := server.Port()
	edge, router := connect(t, server.URL()), connect(t, server.URL())
	b := newBus(t, edge, 0)
	for i := range 1000 {
		if err := b.Interest(name(i), i%2); err != nil {
			t.Fatal(err)
		}
		if err := b.Interest(name(i), i%2); err != nil { // idempotent
			t.Fatal(err)
		}
	}
	if n := edge.NumSubscriptions(); n != 1000 {
		t.Fatalf("%d subscriptions", n)
	}
	all := func() {
		t.Helper()
		flush(t, edge, router)
		for i := range 1000 {
			publish(t, router, name(i))
		}
		for shard := range 2 {
			got := receive(t, b, shard, 500)
			for i := shard; i < 1000; i += 2 {
				if got[name(i)] != 1 {
					t.Fatalf("shard %d has %d messages of %q", shard, got[name(i)], name(i))
				}
			}
		}
	}
	all()
	before := b.Disruptions(0)
	server.Close()
	startServer(t, port)
	for deadline := time.Now().Add(10 * time.Second); b.Disruptions(0) == before || !router.IsConnected(); {
		if time.Now().After(deadline) {
			t.Fatal("the connection did not come back")
		}
		<-time.After(5 * time.Millisecond)
	}
	all()
}

func TestRenewedInterestIsDeliveredOnce(t *testing.T) {
	server := startServer(t, 0)
	edge, router := connect(t, server.URL()), connect(t, server.URL())
	b := newBus(t, edge, 0)
	for _, step := range []func(string, int) error{b.Renew, b.Interest, b.Renew} {
		if err := step("a", 0); err != nil {
			t.Fatal(err)
		}
	}
	if n := edge.NumSubscriptions(); n != 1 {
		t.Fatalf("%d subscriptions", n)
	}
	flush(t, edge)
	publish(t, router, "a")
	flush(t, router, edge)
	if got := receive(t, b, 0, 1); got["a"] != 1 || len(b.shards[0].queue) != 0 {
		t.Fatalf("got %v, and %d more", got, len(b.shards[0].queue))
	}
}

func TestDroppedInterestEnds(t *testing.T) {
	server := startServer(t, 0)
	edge, router := connect(t, server.URL()), connect(t, server.URL())
	b := newBus(t, edge, 0)
	for _, channel := range []string{"a", "b"} {
		if err := b.Interest(channel, 0); err != nil {
			t.Fatal(err)
		}
	}
	b.Drop("a", 0)
	b.Drop("a", 0)
	flush(t, edge)
	publish(t, router, "a")
	publish(t, router, "b")
	flush(t, router)
	if got := receive(t, b, 0, 1); got["b"] != 1 {
		t.Fatalf("got %v", got)
	}
}

func TestFullQueueDropsCountsAndTells(t *testing.T) {
	server := startServer(t, 0)
	edge, router := connect(t, server.URL()), connect(t, server.URL())
	b := newBus(t, edge, 4)
	if err := b.Interest("a", 0); err != nil {
		t.Fatal(err)
	}
	flush(t, edge)
	before, other := b.Disruptions(0), b.Disruptions(1)
	for range 10 {
		publish(t, router, "a")
	}
	flush(t, router)
	for deadline := time.Now().Add(10 * time.Second); b.dropped() != 6; {
		if time.Now().After(deadline) {
			t.Fatalf("%v dropped", b.dropped())
		}
		<-time.After(time.Millisecond)
	}
	receive(t, b, 0, 4)
	if b.Disruptions(0) == before || b.Disruptions(1) != other {
		t.Fatal("the shard was not told that it lost messages")
	}
	b.Drop("a", 0)
	if b.dropped() != 6 {
		t.Fatalf("%v dropped after the interest ended", b.dropped())
	}
}

func TestInterestWhileTheBusIsAwayIsRemembered(t *testing.T) {
	server := startServer(t, 0)
	port := server.Port()
	edge := connect(t, server.URL())
	b := newBus(t, edge, 0)
	server.Close()
	for deadline := time.Now().Add(10 * time.Second); edge.IsConnected(); {
		if time.Now().After(deadline) {
			t.Fatal("still connected")
		}
		<-time.After(time.Millisecond)
	}
	if err := b.Interest("a", 0); err != nil {
		t.Fatal(err)
	}
	server = startServer(t, port)
	router := connect(t, server.URL())
	for deadline := time.Now().Add(10 * time.Second); !edge.IsConnected(); {
		if time.Now().After(deadline) {
			t.Fatal("did not come back")
		}
		<-time.After(time.Millisecond)
	}
	flush(t, edge)
	publish(t, router, "a")
	receive(t, b, 0, 1)
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	server := startServer(t, 0)
	b := newBus(t, connect(t, server.URL()), 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Receive(ctx, 0, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestClosedConnectionIsAnError(t *testing.T) {
	server := startServer(t, 0)
	conn := connect(t, server.URL())
	b := newBus(t, conn, 0)
	conn.Close()
	if err := b.Interest("a", 0); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Fatal(err)
	}
	b.Drop("a", 0)
}
