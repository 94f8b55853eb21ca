package loadgen

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/cmd/drill/internal/floor"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// welcome answers the connect frame as a node of that name, all channels recovered.
func (p *peer) welcome(node, ticket string, head uint64) *clientv1.Connect {
	_, _ = p.Write(floor.AcceptAnswer(p.request))
	f := p.command()
	m := f.GetConnect()
	if m == nil {
		return &clientv1.Connect{}
	}
	var entries []*clientv1.SubscriptionEntry
	for _, s := range m.Subscriptions {
		entries = append(entries, &clientv1.SubscriptionEntry{Channel: s.Channel, Epoch: "e1", Offset: head, Recovered: s.Offset != nil})
	}
	p.say(&clientv1.ServerFrame{Id: f.Id, Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{
		Session: "s", Node: node, Ticket: ticket, PingIntervalMs: 30_000, PongTimeoutMs: 10_000, Subscriptions: entries,
	}}})
	return m
}

// closeCode reads until the client's close frame.
func (p *peer) closeCode() int {
	for {
		h, err := ws.ReadHeader(p.frames)
		if err != nil || h.Length > 1<<16 {
			return 0
		}
		payload := make([]byte, h.Length)
		if _, err := io.ReadFull(p.frames, payload); err != nil {
			return 0
		}
		if h.OpCode == ws.OpClose && len(payload) >= 2 {
			ws.Cipher(payload, h.Mask, 0)
			return int(binary.BigEndian.Uint16(payload))
		}
	}
}

func (p *peer) refuse(busy *clientv1.Busy) {
	_, _ = p.Write(floor.AcceptAnswer(p.request))
	p.say(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Busy{Busy: busy}})
	_, _ = p.Write(ws.MustCompileFrame(ws.NewCloseFrame(ws.NewCloseFrameBody(4010, "busy"))))
	_ = p.Conn.(*net.TCPConn).CloseWrite()
}

// The new connection is up before the old one closes; a refused move is repeated with
// its pass; what both bring is delivered once.
func TestAMoveIsMadeBeforeTheBreak(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	note := func(p *peer, m *clientv1.Connect) {
		offered := ""
		if i := strings.Index(string(p.request), "spillway.ticket."); i >= 0 {
			offered, _, _ = strings.Cut(string(p.request)[i+len("spillway.ticket."):], "\r\n")
		}
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, fmt.Sprintf("door %s connect %s attempt %d", offered, m.GetTicket(), m.GetAttempt()))
	}
	var s *server
	moved, closed := make(chan struct{}), make(chan int, 1)
	s = serve(t, func(p *peer) {
		switch p.number {
		case 0:
			note(p, p.welcome("a", "T1", 0))
			p.events("chat:1", 1, 2)
			p.say(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
				Reason: "drain", AfterMs: 20, DeadlineMs: 20_000, Url: s.url(), Ticket: "M1"}}})
			<-moved
			p.events("chat:1", 3, 4)
			closed <- p.closeCode()
		case 1:
			note(p, nil)
			p.refuse(&clientv1.Busy{RetryAfterMs: 50, Scope: "node", Ticket: "P1"})
		case 2:
			note(p, p.welcome("b", "T2", 3)) // 3 is to come before the old one may go
			close(moved)
			p.events("chat:1", 3, 4, 5)
		}
	})
	g := generate(t, s, func(c *Config) { c.Policy = Policy{Kind: "sdk"} })
	r := g.until("five events", func(r *Report) bool { return r.Total.Deliveries >= 5 && r.Causes["moved"] == 1 })
	c := r.Total
	if !c.Clean() || c.Deliveries != 5 || c.Interrupted != 0 || c.Moved != 1 || c.MovesRefused != 1 || c.Passes != 1 || r.Up != 1 {
		t.Errorf("%+v", c)
	}
	if len(r.MovesEach) < 2 || r.MovesEach[1] != 1 {
		t.Errorf("moves %v", r.MovesEach)
	}
	if code := <-closed; code != 1000 {
		t.Errorf("the old connection was closed with %d", code)
	}
	mu.Lock()
	defer mu.Unlock()
	want := "[door  connect  attempt 1 door M1 connect  attempt 0 door P1 connect M1 attempt 3]"
	if got := fmt.Sprint(asked); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// An outage ends when the client is back; it has caught up when it has the head.
func TestAnOutageIsMeasured(t *testing.T) {
	s := serve(t, func(p *peer) {
		if p.number > 0 {
			p.welcome("b", "T2", 4)
			p.events("chat:1", 3, 4)
			return
		}
		p.welcome("a", "T1", 0)
		p.events("chat:1", 1, 2)
		_ = p.Close()
	})
	g := generate(t, s, func(c *Config) { c.Policy = Policy{Kind: "sdk"} })
	r := g.until("four events", func(r *Report) bool { return r.Total.Deliveries == 4 })
	if c := r.Total; !c.Clean() || c.Interrupted != 1 || c.CaughtUp != 1 || c.FirstAttempts != 1 || c.FirstRefused != 0 || c.Offered != 1 {
		t.Errorf("%+v", c)
	}
	if r.Outage.Count() != 1 || r.CaughtUp.Count() != 1 || r.CaughtUp.Max() < r.Outage.Max() {
		t.Errorf("outage %v, caught up %v", r.Outage.Max(), r.CaughtUp.Max())
	}
	if len(r.ByNode["a"]) == 0 || len(r.ByNode["b"]) == 0 {
		t.Errorf("arrivals by node: %v", r.ByNode)
	}
}

// Whoever waits for clients that will not come is told.
func TestClientsThatStayAwayEndTheWaiting(t *testing.T) {
	s := serve(t, func(p *peer) {
		if p.number == 1 {
			_ = p.Close()
			return
		}
		p.greet()
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cfg := Default()
	cfg.Targets, cfg.Max = []string{s.url()}, 3
	cfg.Subscriptions = []Subscription{{Format: "chat:1"}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(ctx, ParentConfig{Command: []string{self}, Env: []string{roleVariable + "=generator"}, Children: 2, Index: 7}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Want(3); err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitUp(ctx, 3); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "for good") {
		t.Errorf("waited until %v", err)
	}
}

// A name with several addresses: where nobody listens the next one is tried at once.
func TestTheNextAddressIsTriedWhereNobodyListens(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "ws://" + ln.Addr().String() + "/v1/ws"
	_ = ln.Close()
	s := serve(t, func(p *peer) { p.greet() })
	g := generate(t, s, func(c *Config) { c.Targets = []string{dead, dead, s.url()} })
	r := g.until("connected", func(r *Report) bool { return r.Up == 1 })
	if r.Total.Attempts != 1 || r.Total.Failed != 0 {
		t.Errorf("%+v", r.Total)
	}
}
