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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
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

// pair is a router and two edges on a real bus and a real etcd; the second edge's
// ways to both can be cut.
type pair struct {
	t         *testing.T
	one       *Node
	two       *Node
	ways      []*pipe
	admin     routerv1.AdminServiceClient
	publisher routerv1.PublisherServiceClient
	routerOps string
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
	kv := newPipe(t, strings.TrimPrefix(in.EtcdEndpoint(), "http://"))
	p.ways = []*pipe{bus, kv}
	p.two = p.edge("edge-2", file, "nats://"+bus.ln.Addr().String(), "http://"+kv.ln.Addr().String())
	p.router(in)
	for _, n := range []*Node{p.one, p.two} {
		eventually(t, "joined", n.Ready)
	}
	return p
}

func (p *pair) edge(id, secretFile, natsURL, endpoint string) *Node {
	p.t.Helper()
	f := gatewayfile.Default()
	f.ID, f.Listen, f.OpsListen = id, "127.0.0.1:0", "127.0.0.1:0"
	f.NATS.URLs, f.Etcd.Endpoints, f.Auth.HS256SecretFile = []string{natsURL}, []string{endpoint}, secretFile
	f.DrainDeadline = time.Second
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

// router starts one, for channels and for the operator's calls.
func (p *pair) router(in *infra.Infra) {
	p.t.Helper()
	f := routerfile.Default()
	f.ID, f.Router.API.Listen, f.OpsListen = "router-1", "127.0.0.1:0", "127.0.0.1:0"
	f.NATS.URLs, f.Etcd.Endpoints = []string{in.NATSURL()}, []string{in.EtcdEndpoint()}
	f.Store.SQLite.Path = filepath.Join(p.t.TempDir(), "store")
	n, err := routernode.New(p.t.Context(), &f, routernode.Options{Dev: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.t.Fatal(err)
	}
	p.routerOps = n.OpsAddr()
	p.running(func(ctx context.Context) error { return n.Run(ctx, context.Background()) })
	conn, err := grpc.NewClient(n.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	p.admin, p.publisher = routerv1.NewAdminServiceClient(conn), routerv1.NewPublisherServiceClient(conn)
	eventually(p.t, "the router is ready", n.Ready)
	eventually(p.t, "the router sees both edges", func() bool { return len(n.Members().Edges()) == 2 })
}

// call bounds one call of an operator.
func (p *pair) call(do func(ctx context.Context) error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if err := do(ctx); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) revoke(user string) {
	p.t.Helper()
	p.call(func(ctx context.Context) error {
		_, err := p.admin.Revoke(ctx, &routerv1.RevokeRequest{User: user})
		return err
	})
}

func (p *pair) disconnect(user string, code uint32) {
	p.t.Helper()
	p.call(func(ctx context.Context) error {
		_, err := p.admin.Disconnect(ctx, &routerv1.DisconnectRequest{User: user, CloseCode: code})
		return err
	})
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
	for line := range strings.Lines(scrape(t, n.OpsAddr())) {
		var value float64
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &value); err == nil {
				return value
			}
		}
	}
	return -1
}

func scrape(t *testing.T, ops string) string {
	t.Helper()
	resp, err := http.Get("http://" + ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// user is a client by hand.
type user struct {
	t    *testing.T
	conn net.Conn
	left []string // lines of a message not yet looked at
}

func (p *pair) connect(n *Node, fields string) (*user, map[string]any) {
	p.t.Helper()
	conn, _, _, err := ws.Dialer{Timeout: patience, Protocols: []string{wire.ProtocolJSON}}.Dial(p.t.Context(), "ws://"+n.Addr()+"/v1/ws")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	u := &user{t: p.t, conn: conn}
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
	if len(u.left) == 0 {
		u.conn.SetDeadline(time.Now().Add(patience))
		text, err := wsutil.ReadServerText(u.conn)
		if err != nil {
			u.t.Fatal(err)
		}
		u.left = strings.Split(string(text), "\n")
	}
	line := u.left[0]
	u.left = u.left[1:]
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
