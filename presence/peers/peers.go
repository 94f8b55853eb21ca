// Package peers keeps one gRPC connection to each router that a node talks to,
// following the membership view: made at the first use, closed when the router is
// gone. Connections reconnect within three seconds and for ever.
//
// It owns no goroutines of its own; gRPC's end with Close.
package peers

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/spillway-io/spillway/presence"
)

// MaxMessageBytes bounds what a router may answer.
const MaxMessageBytes = 4 << 20

// ErrClosed is returned after Close.
var ErrClosed = errors.New("peer connections are closed")

// Config of Peers.
type Config struct {
	Transport credentials.TransportCredentials // nil: plain text
	Call      credentials.PerRPCCredentials    // nil: none
	Options   []grpc.DialOption                // more, for tests and tracing
	View      interface{ Snapshot() *presence.Snapshot }
}

// Peers is safe for concurrent use.
type Peers struct {
	cfg Config

	mu     sync.Mutex // guards all below
	conns  map[string]peer
	closed bool
}

type peer struct {
	address string
	conn    *grpc.ClientConn
}

// New makes an empty set.
func New(cfg Config) *Peers {
	if cfg.Transport == nil {
		cfg.Transport = insecure.NewCredentials()
	}
	return &Peers{cfg: cfg, conns: make(map[string]peer)}
}

// Conn is the connection to a router. It is made if need be, without waiting.
func (p *Peers) Conn(m *presence.Member) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if have, ok := p.conns[m.Id]; ok {
		if have.address == m.Address {
			return have.conn, nil
		}
		have.conn.Close()
		delete(p.conns, m.Id)
	}
	p.pruneLocked()
	conn, err := grpc.NewClient("passthrough:///"+m.Address, p.options()...)
	if err != nil {
		return nil, fmt.Errorf("dial router %s: %w", m.Id, err)
	}
	p.conns[m.Id] = peer{m.Address, conn}
	return conn, nil
}

// Down says that the last attempt to reach a router failed and no newer one
// has succeeded: a call would fail before it was sent.
func (p *Peers) Down(m *presence.Member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, ok := p.conns[m.Id]
	return ok && have.address == m.Address && have.conn.GetState() == connectivity.TransientFailure
}

// Close ends all connections. Idempotent.
func (p *Peers) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for id, have := range p.conns {
		have.conn.Close()
		delete(p.conns, id)
	}
}

// pruneLocked closes connections to routers that the view does not have.
func (p *Peers) pruneLocked() {
	if p.cfg.View == nil {
		return
	}
	known := make(map[string]bool)
	for _, m := range p.cfg.View.Snapshot().Members() {
		known[m.Id] = true
	}
	for id, have := range p.conns {
		if !known[id] {
			have.conn.Close()
			delete(p.conns, id)
		}
	}
}

func (p *Peers) options() []grpc.DialOption {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(p.cfg.Transport),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
	}
	if p.cfg.Call != nil {
		options = append(options, grpc.WithPerRPCCredentials(p.cfg.Call))
	}
	return append(options, p.cfg.Options...)
}
