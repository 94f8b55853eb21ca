package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// What the machine promises, by its numbers.
const (
	stableUp  = 5 * time.Second // so long up, and failures are forgotten
	lastTime  = 5 * time.Second // the old connection after the last takeover
	nudgePing = 5 * time.Second // for an answer after Wake
	maxHeld   = 4 << 20         // bytes that wait for the other stream
)

// server is a scripted edge in memory: the test accepts connections and plays its
// part line by line.
type server struct {
	t       *testing.T
	mu      sync.Mutex // guards dials where a test reads them while clients dial
	arrived chan net.Conn
	dials   []time.Time // of a bubble's clock; read when nothing dials
	down    bool        // dials fail
	attempt uint64      // the highest that a connect told
}

func newServer(t *testing.T) *server {
	return &server{t: t, arrived: make(chan net.Conn, 16)}
}

func (s *server) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, time.Now())
	s.mu.Unlock()
	if s.down {
		return nil, fmt.Errorf("connection refused")
	}
	near, far := net.Pipe()
	select {
	case s.arrived <- dialled{far, addr}:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dialled is the server's end, and where the client thought it was.
type dialled struct {
	net.Conn
	addr string
}

// client makes a client of this server whose jitter is always half of what it may
// be, so that tests can say when things happen.
func (s *server) client(opts ...Option) *Client {
	s.t.Helper()
	half := func(d time.Duration) time.Duration { return d / 2 }
	c, err := New("ws://edge.test/v1/ws", append([]Option{WithDialer(s.dial), WithRandom(half)}, opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// peer is one accepted connection.
type peer struct {
	t       *testing.T
	s       *server
	nc      net.Conn
	r       *bufio.Reader
	addr    string
	offered []string // subprotocols
	attempt uint64   // told in connect
}

// accept waits for the next dial and upgrades it.
func (s *server) accept() *peer {
	s.t.Helper()
	nc := s.acceptRaw()
	p := &peer{t: s.t, s: s, nc: nc, r: bufio.NewReader(nc)}
	if d, ok := nc.(dialled); ok {
		p.addr = d.addr
	}
	up := ws.Upgrader{Protocol: func(b []byte) bool {
		p.offered = append(p.offered, string(b))
		return false
	}}
	if _, err := up.Upgrade(nc); err != nil {
		s.t.Fatalf("upgrade: %v", err)
	}
	return p
}

func (s *server) acceptRaw() net.Conn {
	s.t.Helper()
	select {
	case nc := <-s.arrived:
		return nc
	case <-time.After(time.Hour):
		s.t.Fatal("nobody dials")
		return nil
	}
}

// readFrame reads one frame of the client, masked as it came.
func (p *peer) readFrame() (f ws.Frame, err error) {
	if f.Header, err = ws.ReadHeader(p.r); err != nil {
		return f, err
	}
	if f.Header.Length > wire.MaxFrameBytes {
		return f, fmt.Errorf("a frame of %d bytes", f.Header.Length)
	}
	f.Payload = make([]byte, f.Header.Length)
	_, err = io.ReadFull(p.r, f.Payload)
	return f, err
}

// next reads one command.
func (p *peer) next() *clientv1.ClientFrame {
	p.t.Helper()
	for {
		f, err := p.readFrame()
		if err != nil {
			p.t.Fatalf("read a command: %v", err)
		}
		f = ws.UnmaskFrameInPlace(f)
		if f.Header.OpCode != ws.OpText {
			continue
		}
		c, problem := wire.DecodeClient(f.Payload)
		if problem != nil {
			p.t.Fatalf("%s: %v", f.Payload, problem)
		}
		if connect := c.GetConnect(); connect != nil {
			p.attempts(connect.GetAttempt())
		}
		return c
	}
}

// attempts rise with each connection, and stay when connect is repeated on one.
func (p *peer) attempts(n uint64) {
	if n == 0 || p.attempt == 0 && n <= p.s.attempt || p.attempt > 0 && n != p.attempt {
		p.t.Errorf("attempt %d, here before: %d, elsewhere: %d", n, p.attempt, p.s.attempt)
	}
	p.attempt = n
	p.s.attempt = max(p.s.attempt, n)
}

// expect reads one command and compares it with text, in which $ stands for the id and
// @ for the attempt.
func (p *peer) expect(text string) uint32 {
	p.t.Helper()
	c := p.next()
	got := string(wire.AppendClient(nil, c))
	if want := strings.NewReplacer("$", fmt.Sprint(c.Id), "@", fmt.Sprint(p.attempt)).Replace(text); got != want {
		p.t.Fatalf("the client sent\n%s\nwant\n%s", got, want)
	}
	return c.Id
}

// send writes frames as one message, $ stands for id. It may run on a goroutine of
// its own: it reports with Errorf.
func (p *peer) send(id uint32, frames ...string) {
	p.t.Helper()
	text := strings.ReplaceAll(strings.Join(frames, "\n"), "$", fmt.Sprint(id))
	p.nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err := ws.WriteFrame(p.nc, ws.NewTextFrame([]byte(text))); err != nil {
		p.t.Errorf("send %s: %v", text, err)
	}
	p.nc.SetWriteDeadline(time.Time{})
}

const (
	hello       = `{"type":"connected","id":$,"session":"s","node":"edge-1","region":"eu","ping_interval_ms":30000,"pong_timeout_ms":10000,"retry_window_ms":2000,"max_frame_bytes":65536,"subscriptions":[`
	helloEnd    = `]}`
	bareConnect = `{"type":"connect","id":$,"attempt":@,"client":"spillway-go"}`
)

// welcome answers connect.
func (p *peer) welcome(entries ...string) {
	p.t.Helper()
	c := p.next()
	if c.GetConnect() == nil {
		p.t.Fatalf("want connect, the client sent %v", c)
	}
	p.send(c.Id, hello+strings.Join(entries, ",")+helloEnd)
}

// hello answers connect as another node, with a ticket.
func (p *peer) hello(node, ticket string, entries ...string) {
	p.t.Helper()
	c := p.next()
	if c.GetConnect() == nil {
		p.t.Fatalf("want connect, the client sent %v", c)
	}
	p.answerHello(c.Id, node, ticket, entries...)
}

func (p *peer) answerHello(id uint32, node, ticket string, entries ...string) {
	p.t.Helper()
	text := strings.Replace(hello, `"node":"edge-1"`, fmt.Sprintf(`"node":%q,"ticket":%q,"resumed":true`, node, ticket), 1)
	p.send(id, text+strings.Join(entries, ",")+helloEnd)
}

// expectClose answers pings until the client says that it closes.
func (p *peer) expectClose(code wire.CloseCode) {
	p.t.Helper()
	for {
		f, err := p.readFrame()
		if err != nil {
			p.t.Fatalf("read a close: %v", err)
		}
		if f = ws.UnmaskFrame(f); f.Header.OpCode != ws.OpClose {
			if c, _ := wire.DecodeClient(f.Payload); c.GetPing() != nil {
				p.send(c.Id, `{"type":"pong","id":$}`)
			}
			continue
		}
		if got, _ := ws.ParseCloseFrameData(f.Payload); wire.CloseCode(got) != code {
			p.t.Errorf("the client closed with %d, want %v", got, code)
		}
		p.nc.Close()
		return
	}
}

// ticket that the client offered at the door.
func (p *peer) ticket() string {
	for _, o := range p.offered {
		if t, ok := strings.CutPrefix(o, wire.TicketPrefix); ok {
			return t
		}
	}
	return ""
}

// cut ends the connection without a word.
func (p *peer) cut() { p.nc.Close() }

// close says a code and waits for the client to go.
func (p *peer) close(code wire.CloseCode) {
	p.nc.SetDeadline(time.Now().Add(10 * time.Second))
	_ = ws.WriteFrame(p.nc, ws.NewCloseFrame(ws.NewCloseFrameBody(ws.StatusCode(code), "")))
	_, _ = io.Copy(io.Discard, p.r)
	p.nc.Close()
}

// drain answers pings until the connection ends.
func (p *peer) drain() {
	for {
		f, err := p.readFrame()
		if err != nil {
			p.nc.Close()
			return
		}
		var head struct {
			Type string
			ID   uint32
		}
		f = ws.UnmaskFrameInPlace(f)
		if json.Unmarshal(f.Payload, &head) == nil && head.Type == "ping" {
			_ = ws.WriteFrame(p.nc, ws.NewTextFrame(fmt.Appendf(nil, `{"type":"pong","id":%d}`, head.ID)))
		}
	}
}

func event(channel string, offset int) string {
	return fmt.Sprintf(`{"type":"event","channel":%q,"offset":%d,"data":{"n":%d},"time_ms":1}`, channel, offset, offset)
}

// log is a handler that writes down what it hears.
type log struct{ lines chan string }

func newLog() *log { return &log{make(chan string, 1000)} }

func (l *log) add(format string, args ...any) { l.lines <- fmt.Sprintf(format, args...) }

func (l *log) handler() Handler {
	return Handler{
		OnSubscribed: func(s Subscribed) {
			if s.Pending {
				l.add("pending")
				return
			}
			l.add("subscribed %s:%d recovered=%v", s.Epoch, s.Offset, s.Recovered)
		},
		OnEvent: func(e Event) { l.add("event %s:%d %s", e.Epoch, e.Offset, e.Data) },
		OnGap: func(g Gap) {
			l.add("gap %s:%d to %s:%d %s %v", g.From.Epoch, g.From.Offset, g.Epoch, g.Offset, g.Reason, g.ReloadAfter)
		},
		OnError:        func(err error) { l.add("error %v", err) },
		OnUnsubscribed: func(err error) { l.add("end %v", err) },
	}
}

func (l *log) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-l.lines:
			if got != w {
				t.Fatalf("the application heard %q, want %q", got, w)
			}
		case <-time.After(time.Hour):
			t.Fatalf("the application heard nothing, want %q", w)
		}
	}
}

func (l *log) nothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-l.lines:
		t.Fatalf("the application heard %q, want nothing", got)
	default:
	}
}
