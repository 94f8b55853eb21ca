package nats

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/nats/natsserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = 50 * time.Millisecond

// ears is one node's load figures and what it heard.
type ears struct {
	conn *nats.Conn
	stop func() error

	mu      sync.Mutex // guards all below
	heard   map[string]int
	seq     uint64
	up      bool
	dropped [2]int
}

func connect(t *testing.T, server *natsserver.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(server.URL(), append(options, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func listen(t *testing.T, server *natsserver.Server, id, region string) *ears {
	e := &ears{conn: connect(t, server), heard: make(map[string]int)}
	b := NewLoadFigures(e.conn, "test", region, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	// Ended and waited for by stop.
	go func() { done <- b.Run(ctx, e.listener(id, region)) }()
	e.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { e.stop() })
	return e
}

func (e *ears) listener(id, region string) presence.Listener {
	return presence.Listener{
		Own: func() (*presence.Figure, time.Duration) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.seq++
			return &presence.Figure{Id: id, Region: region, Seq: e.seq}, interval
		},
		Heard: func(f *presence.Figure) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.heard[f.Id]++
		},
		Connected: func(up bool) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.up = up
		},
		Dropped: func(why presence.FigureDrop, n int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.dropped[why] += n
		},
	}
}

func (e *ears) count(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard[id]
}

func (e *ears) isUp() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.up
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}

func start(t *testing.T, port int) *natsserver.Server {
	t.Helper()
	server, err := natsserver.Start(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func TestAllRegionsAreHeardAndOneself(t *testing.T) {
	server := start(t, 0)
	a, b := listen(t, server, "a", "eu"), listen(t, server, "b", "us.east *>")
	eventually(t, "each hears both, again and again", func() bool {
		return a.count("a") > 2 && a.count("b") > 2 && b.count("a") > 2 && b.count("b") > 2
	})
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if b.conn.NumSubscriptions() != 0 {
		t.Error("a subscription outlived its run")
	}
}

// Whoever ends says a last figure, also long before the next one would be due: what
// happened since the one before is known to nobody else.
func TestTheLastWordIsSaid(t *testing.T) {
	server := start(t, 0)
	ear := listen(t, server, "ear", "eu")
	l := ear.listener("leaver", "eu")
	own := l.Own
	l.Own = func() (*presence.Figure, time.Duration) {
		f, _ := own()
		return f, time.Hour
	}
	b := NewLoadFigures(connect(t, server), "test", "eu", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, l) }() // ended and waited for below
	eventually(t, "its first figure is heard", func() bool { return ear.count("leaver") > 0 })
	before := ear.count("leaver")
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "its last figure is heard", func() bool { return ear.count("leaver") > before })
}

func TestFiguresFlowAgainAfterAnOutage(t *testing.T) {
	server := start(t, 0)
	port := server.Port()
	a, b := listen(t, server, "a", "eu"), listen(t, server, "b", "eu")
	eventually(t, "both heard", func() bool { return a.count("b") > 0 && b.count("a") > 0 && a.isUp() })
	server.Close()
	eventually(t, "the outage is told", func() bool { return !a.isUp() && !b.isUp() })
	before := a.count("b")
	start(t, port)
	eventually(t, "both heard again", func() bool { return a.isUp() && a.count("b") > before+2 })
}

func TestWhatIsNoFigureIsDroppedAndCounted(t *testing.T) {
	server := start(t, 0)
	a := listen(t, server, "a", "eu")
	eventually(t, "itself heard", func() bool { return a.count("a") > 0 })
	large, err := proto.Marshal(&presence.Figure{Id: "x", Region: strings.Repeat("x", maxFigureBytes)})
	if err != nil {
		t.Fatal(err)
	}
	other := connect(t, server)
	for _, data := range [][]byte{nil, []byte("boo"), large} {
		if err := other.Publish("test.load.eu", data); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three dropped", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.dropped[presence.DropUnreadable] == 3
	})
	before := a.count("a")
	eventually(t, "and goes on", func() bool { return a.count("a") > before })
	if a.count("x") != 0 || a.count("") != 0 {
		t.Error("heard what is no figure")
	}
}

// A node that takes figures too slowly loses some, counted, and never grows.
func TestAFullQueueDropsAndCounts(t *testing.T) {
	server := start(t, 0)
	e := &ears{conn: connect(t, server), heard: make(map[string]int)}
	l := e.listener("a", "eu")
	hold, heard := make(chan struct{}), l.Heard
	l.Heard = func(f *presence.Figure) { <-hold; heard(f) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	// Ended by cancel, waited for below.
	go func() { done <- NewLoadFigures(e.conn, "test", "eu", nil).Run(ctx, l) }()
	data, err := proto.Marshal(&presence.Figure{Id: "b"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "subscribed", func() bool { return e.conn.NumSubscriptions() == 1 && e.conn.Flush() == nil })
	other := connect(t, server)
	for range queue + 500 {
		if err := other.Publish("test.load.eu", data); err != nil {
			t.Fatal(err)
		}
	}
	// Once a message of ours came back, all of the other's were there before it.
	if err := errors.Join(other.Flush(), e.conn.Flush()); err != nil {
		t.Fatal(err)
	}
	close(hold)
	eventually(t, "the loss is counted", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.dropped[presence.DropQueueFull] > 0
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := e.count("b"); n > queue+2 {
		t.Errorf("%d were kept", n)
	}
}

func TestAConnectionThatCannotServeIsRefused(t *testing.T) {
	server := start(t, 0)
	l := (&ears{heard: make(map[string]int)}).listener("a", "eu")
	if err := NewLoadFigures(connect(t, server, nats.NoEcho()), "test", "eu", nil).Run(t.Context(), l); err == nil {
		t.Error("a connection without echo was taken")
	}
	closed := connect(t, server)
	closed.Close()
	if err := NewLoadFigures(closed, "test", "eu", nil).Run(t.Context(), l); err == nil {
		t.Error("a closed connection was taken")
	}
}
