package edgenode

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/etcd"
	board "github.com/spillway-io/spillway/presence/nats"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	patience = 20 * time.Second
	secret   = "a secret of thirty-two characters"
)

// pipe is a way to a server that can be cut.
type pipe struct {
	ln net.Listener
	to string

	mu    sync.Mutex // guards below
	conns []net.Conn
	cut   bool
	wg    sync.WaitGroup
}

func newPipe(t *testing.T, to string) *pipe {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pipe{ln: ln, to: to}
	p.wg.Go(p.run) // ends with the listener; the cleanup waits
	t.Cleanup(func() {
		ln.Close()
		p.set(true)
		p.wg.Wait()
	})
	return p
}

func (p *pipe) run() {
	for {
		near, err := p.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.to)
		p.mu.Lock()
		if err != nil || p.cut {
			near.Close()
			if err == nil {
				far.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, near, far)
		p.mu.Unlock()
		// Each ends when either side is closed; the cleanup waits.
		p.wg.Go(func() { io.Copy(near, far); near.Close(); far.Close() })
		p.wg.Go(func() { io.Copy(far, near); near.Close(); far.Close() })
	}
}

func (p *pipe) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = cut; cut {
		for _, c := range p.conns {
			c.Close()
		}
		p.conns = nil
	}
}

// pair is two edges on a real bus and a real etcd, the second by ways that can be cut,
// and a member that revokes.
type pair struct {
	t       *testing.T
	one     *Node
	two     *Node
	ways    []*pipe
	control *control.Control
}

func newPair(t *testing.T) *pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, err := infra.Start(ctx, infra.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t}
	p.one = p.edge("edge-1", file, in.NATSURL(), in.EtcdEndpoint())
	bus := newPipe(t, strings.TrimPrefix(in.NATSURL(), "nats://"))
	shelf := newPipe(t, strings.TrimPrefix(in.EtcdEndpoint(), "http://"))
	p.ways = []*pipe{bus, shelf}
	p.two = p.edge("edge-2", file, "nats://"+bus.ln.Addr().String(), "http://"+shelf.ln.Addr().String())
	p.control = p.operator(in)
	for _, n := range []*Node{p.one, p.two} {
		eventually(t, "joined", n.Ready)
		eventually(t, "a key to mint with", func() bool { _, _, ok := n.control.Mint(time.Now()); return ok })
	}
	return p
}

func (p *pair) edge(id, secretFile, natsURL, endpoint string) *Node {
	p.t.Helper()
	f := config.DefaultGateway()
	f.ID, f.Listen, f.OpsListen = id, "127.0.0.1:0", "127.0.0.1:0"
	f.NATS.URLs, f.Etcd.Endpoints, f.Auth.HS256SecretFile = []string{natsURL}, []string{endpoint}, secretFile
	f.Drain.Deadline = time.Second
	n, err := New(p.t.Context(), &f, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	p.running(func(ctx context.Context) error { return n.Run(ctx, context.Background()) })
	return n
}

// running runs part until the test ends.
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

// operator is a member with a pen, as a router is.
func (p *pair) operator(in *infra.Infra) *control.Control {
	p.t.Helper()
	f := config.DefaultGateway()
	log := slog.New(slog.DiscardHandler)
	f.NATS.URLs, f.Etcd.Endpoints = []string{in.NATSURL()}, []string{in.EtcdEndpoint()}
	conn, err := run.ConnectNATS(f.NATS, "operator", log)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(conn.Close)
	client, err := run.ConnectEtcd(f.Etcd, log)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { client.Close() })
	talk := board.NewTalk(conn, f.NATS.Prefix, log)
	c := control.New(control.Config{Talk: talk}, etcd.NewShelf(client, f.Etcd.Prefix, control.Folders(), log))
	p.running(talk.Run)
	p.running(c.Run)
	return c
}

func (p *pair) revoke(r *gatewayv1.Revocation) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if err := p.control.PutRevocation(ctx, r); err != nil {
		p.t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}

// metric reads one of an edge's; -1: there is none.
func metric(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + n.OpsAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var value float64
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &value); err == nil {
				return value
			}
		}
	}
	return -1
}

// user is a client by hand.
type user struct {
	t    *testing.T
	conn net.Conn
}

func (p *pair) connect(n *Node, fields string) (*user, map[string]any) {
	p.t.Helper()
	conn, _, _, err := ws.Dialer{Timeout: patience, Protocols: []string{wire.ProtocolJSON}}.Dial(p.t.Context(), "ws://"+n.Addr()+"/v1/ws")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	u := &user{p.t, conn}
	u.send(`{"type":"connect","id":1,` + fields + `}`)
	return u, u.next()
}

func (u *user) send(text string) {
	u.t.Helper()
	u.conn.SetDeadline(time.Now().Add(patience))
	if err := wsutil.WriteClientText(u.conn, []byte(text)); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) next() map[string]any {
	u.t.Helper()
	u.conn.SetDeadline(time.Now().Add(patience))
	text, err := wsutil.ReadServerText(u.conn)
	if err != nil {
		u.t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var f map[string]any
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		u.t.Fatal(err)
	}
	return f
}

func (u *user) alive() {
	u.t.Helper()
	u.send(`{"type":"ping","id":9}`)
	if f := u.next(); f["type"] != "pong" {
		u.t.Errorf("got %v", f)
	}
}

func (u *user) wantError(code string, number int) {
	u.t.Helper()
	f := u.next()
	if f["type"] != "error" || f["code"] != code || number != 0 && f["close"] != float64(number) {
		u.t.Errorf("got %v, want error %s, close %d", f, code, number)
	}
}

func token(t *testing.T, sub string) string {
	t.Helper()
	text, err := auth.Mint([]byte(secret), sub, nil, nil, time.Hour, time.Now().Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestASessionMovesBetweenEdgesByTicket(t *testing.T) {
	p := newPair(t)
	old, hello := p.connect(p.one, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "ann")))
	if hello["type"] != "connected" || hello["ticket"] == nil {
		t.Fatalf("got %v", hello)
	}
	young, there := p.connect(p.two, fmt.Sprintf(`"attempt":2,"ticket":%q`, hello["ticket"]))
	if there["resumed"] != true || there["session"] != hello["session"] || there["node"] != "edge-2" {
		t.Errorf("got %v", there)
	}
	eventually(t, "the old conn counts no more", func() bool {
		return metric(t, p.one, "spillway_gateway_conns") == 0 && metric(t, p.one, "spillway_gateway_superseded_conns") == 1
	})
	old.alive()
	young.alive()
}

func TestARevocationReachesEveryEdgeAlsoOneThatWasAway(t *testing.T) {
	p := newPair(t)
	ann, here := p.connect(p.one, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "ann")))
	also, there := p.connect(p.two, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "ann")))
	bob, _ := p.connect(p.two, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "bob")))
	carl, _ := p.connect(p.two, fmt.Sprintf(`"attempt":1,"token":%q`, token(t, "carl")))
	p.revoke(&gatewayv1.Revocation{User: "ann", IssuedBeforeMs: uint64(time.Now().UnixMilli())})
	ann.wantError("revoked", 4100)
	also.wantError("revoked", 4100)
	for _, n := range []*Node{p.one, p.two} {
		for _, f := range []map[string]any{here, there} {
			u, answer := p.connect(n, fmt.Sprintf(`"attempt":2,"ticket":%q`, f["ticket"]))
			if answer["code"] != "revoked" {
				t.Errorf("a ticket opened: %v", answer)
			}
			u.send(fmt.Sprintf(`{"type":"connect","id":2,"token":%q}`, token(t, "ann")))
			u.wantError("revoked", 4100)
		}
	}
	// An edge that is cut off from bus and etcd goes on with what it knows, and closes
	// what it missed when it is back.
	for _, way := range p.ways {
		way.set(true)
	}
	p.revoke(&gatewayv1.Revocation{User: "bob", DisconnectUser: true, CloseCode: 4200})
	p.revoke(&gatewayv1.Revocation{User: "carl", IssuedBeforeMs: uint64(time.Now().UnixMilli())})
	bob.alive()
	carl.alive()
	for _, way := range p.ways {
		way.set(false)
	}
	bob.wantError("forbidden", 4200)
	carl.wantError("revoked", 4100)
	if _, back := p.connect(p.two, fmt.Sprintf(`"token":%q`, token(t, "bob"))); back["type"] != "connected" {
		t.Errorf("credentials of a disconnected user: %v", back)
	}
}
