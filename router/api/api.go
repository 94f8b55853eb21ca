// Package api is what others call a router by: the gRPC services, the same calls as
// JSON over HTTP, the stream on which edges ask, and the forwarding of publications to
// the router that owns their channel.
//
// Backends call PublisherService, HistoryService and AdminService, edges and other
// routers call EdgeService, other routers HandoverService. The root of the router makes
// one Server and runs it. The Server admits what comes (API keys, names, sizes, rights
// of the namespace, publish rates), passes it to Channels, and shapes the answers. It
// calls other routers through Peers for channels that are theirs. It holds no state of
// a channel: a line in here may look at a request, the configuration and the
// view of the membership, and at nothing else. AdminService and HandoverService are
// served here and written elsewhere (router/operations, router/handover).
//
// Life: New does no I/O; Listen and ListenHTTP open the ports; Start serves until Stop
// has ended; Wait returns when no goroutine of a stream or of a forwarded call is left. Goroutines
// are those of gRPC and net/http, one more for each stream, and those of each forwarded
// call: one that keeps the order of its publisher, and one for each owner.
//
// Invariants: each publication that was admitted is finished exactly once; the answers of a
// PublishStream come in the order of its requests; what one publisher sent on one
// stream reaches the owner of a channel in that order, also across a change of
// owners; bodies over HTTP together hold at most 64 MiB, unanswered asks and unsent
// answers of one edge are bounded by the configuration.
//
// Left out on purpose: numbering, storing, and answering from memory or the store.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// Channels numbers what is published and answers what is asked of channels. No method
// blocks, and any goroutine may call them. What is passed belongs to Channels until
// it has been finished or replied to.
type Channels interface {
	// Publish takes an admitted publication and finishes it, with Overflow if there is
	// no room.
	Publish(*channel.Publication)
	// Ask replies to a question once, now or later.
	Ask(*channel.Question)
	// Page replies with a page of history once, now or later.
	Page(*channel.PageQuery)
	// Lag is the age of the oldest question that waits for the store.
	Lag() time.Duration
}

// Views is what this router sees of the membership. No method blocks.
type Views interface {
	// View is the newest snapshot, and a number that grows when owners of channels may
	// have changed.
	View() (*presence.Snapshot, uint64)
}

// Peers has the connections to the other routers. presence/peers.Peers is one.
type Peers interface {
	// Conn makes the connection if need be, without waiting.
	Conn(*presence.Member) (*grpc.ClientConn, error)
	// Down says that a call would fail before it was sent.
	Down(*presence.Member) bool
}

// Deps is what a Server calls. All are needed.
type Deps struct {
	Channels   Channels
	Views      Views
	Peers      Peers
	Namespaces *namespace.Set
	Admin      routerv1.AdminServiceServer
	Handover   gatewayv1.HandoverServiceServer
	Stop       <-chan struct{} // closed before Stop: streams must end
}

// errStopping ends the streams of a router that leaves.
var errStopping = status.Error(codes.Unavailable, "the router is leaving")

// Server serves the calls of one router.
type Server struct {
	// immutable after New
	cfg        Config
	channels   Channels
	views      Views
	peers      Peers
	namespaces *namespace.Set
	rates      map[*namespace.Namespace]*rate
	admin      routerv1.AdminServiceServer
	stop       <-chan struct{}
	log        *slog.Logger
	metrics    *metrics
	gate       *gatekeeper
	grpc       *grpc.Server
	web        *web // nil: no HTTP
	health     *health.Server

	edges   atomic.Int64   // streams of edges now
	streams sync.WaitGroup // goroutines of streams
	calls   sync.WaitGroup // goroutines of forwarded calls

	mu       sync.Mutex // guards below
	listener net.Listener
}

// New makes a Server of a valid configuration.
func New(cfg Config, deps Deps) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{
		cfg: cfg, channels: deps.Channels, views: deps.Views, peers: deps.Peers, namespaces: deps.Namespaces, rates: newRates(deps.Namespaces),
		admin: deps.Admin, stop: deps.Stop, log: cfg.Log, gate: newGatekeeper(cfg.Keys), health: health.NewServer(),
	}
	s.metrics = newMetrics(cfg.Registry, s.httpBytes)
	s.web = newWeb(s)
	s.grpc = s.newGRPC(deps.Handover)
	s.Serving(false)
	return s
}

// Listen opens the port, so that Addr is known before Start.
func (s *Server) Listen(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.listener = listener
	return nil
}

// Addr is where the gRPC server listens; "" before Listen.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Edges is how many edges have a stream here.
func (s *Server) Edges() int64 { return s.edges.Load() }

// Start has a group serve on the ports that Listen and ListenHTTP opened, until Stop
// has ended or one of them fails.
func (s *Server) Start(g *errgroup.Group) {
	g.Go(func() error {
		if err := s.grpc.Serve(s.listener); err != nil && !s.stopping() {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	if s.web != nil {
		g.Go(s.web.run)
	}
}

func (s *Server) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Stop lets calls end until ctx does, then cuts them off. It returns when no handler
// runs any more.
func (s *Server) Stop(ctx context.Context) {
	stopped := make(chan struct{})
	// It waits for calls and ends at the latest with Stop below.
	go func() {
		s.grpc.GracefulStop()
		close(stopped)
	}()
	if s.web != nil {
		s.web.stop(ctx)
	}
	select {
	case <-stopped:
	case <-ctx.Done():
		s.log.Warn("calls were cut off: they did not end in time")
		s.grpc.Stop()
		<-stopped
	}
}

// Wait returns when nothing is left of streams and forwarded calls, soon after Stop.
func (s *Server) Wait() {
	s.streams.Wait()
	s.calls.Wait()
}
