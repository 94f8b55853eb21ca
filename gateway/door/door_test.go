package door

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/load"
	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/gateway/targets"
	"github.com/spillway-io/spillway/gateway/ticket"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/proto/schema"
	"github.com/spillway-io/spillway/proto/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entrance is a door without an edge behind it, in memory and in a bubble's time. It
// keeps what is admitted.
type entrance struct {
	t        *testing.T
	door     *Door
	listener *poller.MemListener
	conns    atomic.Int64
}

func (e *entrance) Adopt(*Admitted)              { e.conns.Add(1) }
func (e *entrance) Probe(p *Probe)               { p.Answer() }
func (e *entrance) Snapshot() *presence.Snapshot { return presence.NewSnapshot(nil, 1) }

func (e *entrance) Figures() map[presence.Key]*presence.Figure { return nil }

// noTickets: none is good, and none can be made.
type noTickets struct{}

func (noTickets) Open(string, time.Time) (*ticket.Ticket, error) { return nil, errors.New("no") }

func (noTickets) Seal(ticket.Ticket, *auth.Claims, time.Time) (string, error) {
	return "", errors.New("no")
}

func (noTickets) Revoked(_, _ string, _ time.Time) bool { return false }

// inBubble runs a test with a door of these lanes.
func inBubble(t *testing.T, change func(*settings.Hot), test func(*testing.T, *entrance)) {
	synctest.Test(t, func(t *testing.T) {
		set := schema.Default[settings.Edge]().Hot
		set.Admission.Adaptive = false
		change(&set)
		e := &entrance{t: t, listener: poller.MemListen(64 << 10)}
		cfg := Config{ID: "e1", Region: "eu", MaxHandshakes: 100, HandshakeTimeout: 5 * time.Second, Log: slog.New(slog.DiscardHandler), Series: load.New(time.Now())}
		var err error
		e.door, err = New(cfg, Deps{
			Listener: e.listener, Poller: poller.NewMem(), Loops: []Loop{e},
			Members: e, Targets: targets.New(targets.Self{ID: "e1", Region: "eu"}, e), Tickets: noTickets{},
			Submit: func(job func()) bool { job(); return true },
			Conns:  func() int { return int(e.conns.Load()) }, Spent: func(uint64) {},
		}, set)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with stop; waited for below
			defer close(ended)
			if err := e.door.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		test(t, e)
		stop()
		<-ended
	})
}

// knock asks for a WebSocket and does not wait for the answer.
func (e *entrance) knock() net.Conn {
	e.t.Helper()
	c, err := e.listener.Dial(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, "GET /v1/ws HTTP/1.1\r\nHost: e1.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: "+wire.ProtocolJSON+"\r\n\r\n")
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

func (e *entrance) answer(c net.Conn) string {
	e.t.Helper()
	b := make([]byte, 16<<10)
	n, err := c.Read(b)
	if err != nil {
		e.t.Fatalf("no answer: %v", err)
	}
	return string(b[:n])
}

// With one place and one newcomer a second, those who can be served within the wait are,
// in the order in which they came; the others hear at once when to come back.
func TestArrivalsAreServedInOrderOrToldWhenToComeBack(t *testing.T) {
	lanes := func(s *settings.Hot) {
		a := &s.Admission
		a.FreshPerSecond, a.FreshBurst, a.Wait = 1, 1, 3*time.Second
	}
	inBubble(t, lanes, func(t *testing.T, e *entrance) {
		start := time.Now()
		var conns []net.Conn
		for range 6 {
			conns = append(conns, e.knock())
			synctest.Wait()
		}
		admitted, refused := 0, 0
		last := time.Duration(0)
		for i, c := range conns {
			text := e.answer(c)
			at := time.Since(start)
			switch {
			case strings.Contains(text, `"type":"busy"`):
				refused++
			case refused > 0:
				t.Errorf("client %d came in after one that came later was refused", i)
			default:
				if admitted++; at < last || at > 4*time.Second {
					t.Errorf("client %d came in after %v", i, at)
				}
				last = at
			}
		}
		synctest.Wait() // the loop gets a socket after its client has the answer
		if admitted < 3 || refused < 2 || int(e.conns.Load()) != admitted {
			t.Errorf("%d came in, %d were refused, the loop has %d", admitted, refused, e.conns.Load())
		}
	})
}

// A client that hangs up while it waits takes nothing from the lane, and an edge that
// leaves admits nobody.
func TestWhoHasGoneIsNotServedAndALeavingEdgeServesNobody(t *testing.T) {
	lanes := func(s *settings.Hot) {
		a := &s.Admission
		a.FreshPerSecond, a.FreshBurst, a.Wait = 1, 1, 3*time.Second
	}
	inBubble(t, lanes, func(t *testing.T, e *entrance) {
		e.answer(e.knock())
		gone := e.knock()
		synctest.Wait()
		next := e.knock()
		synctest.Wait()
		gone.Close()
		start := time.Now()
		if text := e.answer(next); strings.Contains(text, "busy") {
			t.Fatal("refused, though the one ahead has gone")
		}
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("it waited %v for the turn of one that has gone", took)
		}
		e.door.Gate.SetLeaving(true)
		if text := e.answer(e.knock()); !strings.Contains(text, `"type":"busy"`) {
			t.Errorf("a leaving edge answers %q", text)
		}
		synctest.Wait()
		if n := e.conns.Load(); n != 2 {
			t.Errorf("the loop has %d", n)
		}
	})
}

// A request that is never whole costs its place for HandshakeTimeout, and no more.
func TestASlowRequestIsEnded(t *testing.T) {
	inBubble(t, func(*settings.Hot) {}, func(t *testing.T, e *entrance) {
		c, err := e.listener.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /v1/ws HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("it was answered")
		}
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}
