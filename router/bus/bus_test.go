package bus

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run works a bus until the test ends.
func run(t *testing.T, cfg Config, conn Conn) *Bus {
	t.Helper()
	cfg.Prefix, cfg.Registry = "spillway", prometheus.NewRegistry()
	b, err := New(cfg, conn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }() // ended and waited for by the cleanup
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return b
}

func server(t *testing.T) *natsserver.Server {
	t.Helper()
	s, err := natsserver.Start(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func value(c prometheus.Counter) float64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

func connect(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-tick.C
	}
}

func envelope(channel string, first uint64, sizes ...int) *gatewayv1.Envelope {
	e := &gatewayv1.Envelope{Channel: channel, Epoch: 7, Router: "r1"}
	for i, n := range sizes {
		e.Events = append(e.Events, &gatewayv1.BusEvent{Offset: first + uint64(i), Data: []byte(strings.Repeat("x", n))})
		e.Head = first + uint64(i)
	}
	return e
}

// What is published arrives on the channel's own subject, in order, whatever
// the channel is called.
func TestEnvelopesArriveOnTheChannelsSubject(t *testing.T) {
	s := server(t)
	b := run(t, Default(), connect(t, s.URL()))
	conn := connect(t, s.URL())
	for _, channel := range []string{"chat:a", "a.b *>", "ünï"} {
		sub, err := conn.SubscribeSync(wire.Subject("spillway", channel))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			b.Publish(envelope(channel, uint64(i+1), 10))
		}
		for i := range 50 {
			m, err := sub.NextMsg(5 * time.Second)
			if err != nil {
				t.Fatalf("%q message %d: %v", channel, i, err)
			}
			var e gatewayv1.Envelope
			if err := proto.Unmarshal(m.Data, &e); err != nil || e.Head != uint64(i+1) || e.Channel != channel || len(e.Events) != 1 {
				t.Fatalf("%q message %d: %v %v", channel, i, &e, err)
			}
		}
	}
}

func TestLargeEnvelopesAreSplitInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		in   *gatewayv1.Envelope
		want [][]uint64 // offsets of each part; none: head only
		head []uint64
	}{
		"two halves":         {envelope("c", 1, 400, 400, 400), [][]uint64{{1, 2}, {3}}, []uint64{2, 3}},
		"one too large":      {envelope("c", 1, 10, 5000, 10), [][]uint64{{1}, nil, {3}}, []uint64{1, 2, 3}},
		"only one too large": {envelope("c", 4, 5000), [][]uint64{nil}, []uint64{4}},
		"too large at last":  {envelope("c", 4, 10, 5000), [][]uint64{{4}, nil}, []uint64{4, 5}},
	} {
		parts := split(c.in, 1000)
		if len(parts) != len(c.want) {
			t.Errorf("%s: %d parts, want %d", name, len(parts), len(c.want))
			continue
		}
		for i, p := range parts {
			ok := p.Head == c.head[i] && p.Epoch == 7 && p.Channel == "c" && len(p.Events) == len(c.want[i]) && proto.Size(p) < 1000+overhead
			for j := range p.Events {
				ok = ok && p.Events[j].Offset == c.want[i][j]
			}
			if !ok {
				t.Errorf("%s: part %d has head %d and %d events", name, i, p.Head, len(p.Events))
			}
		}
	}
}

// The bus is away: Publish returns at once, what passes the buffer is counted,
// and when it is back new envelopes arrive.
func TestBusAwayDropsAndCounts(t *testing.T) {
	s := server(t)
	conn := connect(t, s.URL(), nats.ReconnectBufSize(4096))
	b := run(t, Default(), conn)
	s.Close()
	eventually(t, "the connection is down", func() bool { return !conn.IsConnected() })
	for i := range 100 {
		b.Publish(envelope("chat:a", uint64(i+1), 200))
	}
	eventually(t, "drops are counted", func() bool { return value(b.metrics.drops.reconnect) > 50 })
	if n := b.queued(); n != 0 {
		eventually(t, "the queue is empty", func() bool { return b.queued() == 0 })
	}
}

// A connection that stands still stops nobody: the queue has a bound.
func TestStalledConnectionNeverBlocksPublish(t *testing.T) {
	stalled := &stalledConn{release: make(chan struct{})}
	cfg := Default()
	cfg.QueueBytes = 10_000
	b := run(t, cfg, stalled)
	for i := range 100 {
		b.Publish(envelope("chat:a", uint64(i+1), 500))
	}
	if value(b.metrics.drops.queue) == 0 || b.queued() > 10_000 {
		t.Errorf("%v bytes queued, %v dropped", b.queued(), value(b.metrics.drops.queue))
	}
	close(stalled.release)
	eventually(t, "the queue empties", func() bool { return b.queued() == 0 })
	stalled.mu.Lock()
	defer stalled.mu.Unlock()
	if got := stalled.sent + int(value(b.metrics.drops.queue)); got != 100 {
		t.Errorf("%d sent or counted as dropped, want 100", got)
	}
}

type stalledConn struct {
	release chan struct{}
	mu      sync.Mutex
	sent    int
}

func (c *stalledConn) Publish(string, []byte) error {
	<-c.release
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	return nil
}

func (c *stalledConn) MaxPayload() int64                      { return 1 << 20 }
func (c *stalledConn) FlushWithContext(context.Context) error { return nil }
