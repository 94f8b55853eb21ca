// Package peers keeps one gRPC connection to each router of the membership view, for
// edges and for routers that forward calls. A connection is made as soon as its router
// serves. It reconnects within three seconds and for ever, and is closed when the router
// has gone from the view.
//
// Run follows the view in the caller's goroutine. All other goroutines are gRPC's and
// end when their connection is closed. No method waits for the network.
//
// Limits: a message has at most 4 MiB, either way. Routers must allow pings every ten
// seconds (keepalive.EnforcementPolicy), or they end the connections.
//
// Left out on purpose: retries, since the callers know which calls may have them, and
// connections to edges, which only clients have.
package peers

import (
	"context"
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
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// MaxMessageBytes bounds one message to or from a router.
const MaxMessageBytes = 4 << 20

// reconnect keeps connections up: gRPC's default policy lets a lost one rest until
// the next call, so that the first to find out would be a publish.
const reconnect = `{"loadBalancingConfig": [{"round_robin": {}}]}`

// ErrClosed is returned after Close.
var ErrClosed = errors.New("peer connections are closed")

// View is the membership that is followed; presence.Cluster is one.
type View interface {
	Snapshot() *presence.Snapshot
	Changed() <-chan struct{}
}

// Config of Peers.
type Config struct {
	View View   // nil: connections are made on demand and closed by Close only
	Self string // id of this node if it is a router: not dialled ahead

	Transport credentials.TransportCredentials // nil: plain text
	Call      credentials.PerRPCCredentials    // nil: none
	Options   []grpc.DialOption                // more, for tests and tracing; they win
}

// Peers is safe for concurrent use.
type Peers struct {
	cfg     Config
	options []grpc.DialOption

	mu     sync.Mutex // guards all below
	conns  map[string]peer
	closed bool
}

type peer struct {
	address     string
	incarnation uint64
	conn        *grpc.ClientConn
}

// New makes an empty set.
func New(cfg Config) *Peers {
	return &Peers{cfg: cfg, options: dialOptions(cfg), conns: make(map[string]peer)}
}

// Run follows the view until ctx ends; then it closes all connections. Without it
// connections are made when first asked for and stay.
func (p *Peers) Run(ctx context.Context) error {
	defer p.Close()
	if p.cfg.View == nil {
		<-ctx.Done()
		return nil
	}
	for {
		changed := p.cfg.View.Changed() // before the snapshot, or a change is missed
		p.follow(p.cfg.View.Snapshot())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Conn is the connection to a router; it is made if need be, without waiting. The
// caller does not close it, and asks again for each call: it is closed when the
// router goes. Errors: ErrClosed, or an address that is none.
func (p *Peers) Conn(m *presence.Member) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	have, ok := p.conns[m.Id]
	switch {
	case ok && have.address == m.Address && have.incarnation == m.Incarnation:
		return have.conn, nil
	case ok && have.address == m.Address:
		have.conn.ResetConnectBackoff() // the process is new: it can be reached again
		have.incarnation = m.Incarnation
		p.conns[m.Id] = have
		return have.conn, nil
	case ok:
		p.dropLocked(m.Id)
	}
	conn, err := grpc.NewClient("passthrough:///"+m.Address, p.options...)
	if err != nil {
		return nil, fmt.Errorf("dial router %s: %w", m.Id, err)
	}
	conn.Connect()
	p.conns[m.Id] = peer{m.Address, m.Incarnation, conn}
	return conn, nil
}

// State is that of the connection to a router: TransientFailure means that the
// last try failed and no newer one has succeeded, so that a call would fail before
// it was sent. Idle: there is none yet.
func (p *Peers) State(m *presence.Member) connectivity.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have, ok := p.conns[m.Id]; ok && have.address == m.Address {
		return have.conn.GetState()
	}
	return connectivity.Idle
}

// Down says that State is TransientFailure.
func (p *Peers) Down(m *presence.Member) bool {
	return p.State(m) == connectivity.TransientFailure
}

// Pick returns the serving routers in the order in which a call about a channel
// should try them: the owner, then those who would inherit from it. Empty: no
// router serves, or there is no view.
func (p *Peers) Pick(channel string) []*presence.Member {
	if p.cfg.View == nil {
		return nil
	}
	return p.cfg.View.Snapshot().Ranked(channel)
}

// Close ends all connections, and calls on them with Canceled. Idempotent.
func (p *Peers) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for id := range p.conns {
		p.dropLocked(id)
	}
}

// follow closes what has gone from the view and dials who serves.
func (p *Peers) follow(s *presence.Snapshot) {
	p.prune(s)
	for _, m := range s.Routers() {
		if m.Id != p.cfg.Self {
			_, _ = p.Conn(m) // whoever calls it hears the error
		}
	}
}

func (p *Peers) prune(s *presence.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.conns {
		if s.Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id}) == nil {
			p.dropLocked(id)
		}
	}
}

// dropLocked closes one; ClientConn.Close fails only if it is closed already.
func (p *Peers) dropLocked(id string) {
	_ = p.conns[id].conn.Close()
	delete(p.conns, id)
}

func dialOptions(cfg Config) []grpc.DialOption {
	if cfg.Transport == nil {
		cfg.Transport = insecure.NewCredentials()
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(cfg.Transport),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2500 * time.Millisecond},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
		grpc.WithIdleTimeout(0), // an idle connection has no state to go by
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithDisableServiceConfig(), // that of DNS
		grpc.WithDefaultServiceConfig(reconnect),
	}
	if cfg.Call != nil {
		options = append(options, grpc.WithPerRPCCredentials(cfg.Call))
	}
	return append(options, cfg.Options...)
}
