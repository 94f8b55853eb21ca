// Package operations is the control side of a router: drains and evacuations of edges,
// the hooks that are called on the way, revocations, the edges' settings, the list of
// nodes, and settle times.
//
// The root of the router makes one Service, registers it as the gRPC AdminService (the
// HTTP API calls the same methods), runs it, and passes it every load figure and every
// departure of a member (Heard, Gone). The Service calls the router's Membership for who
// is there, presence/control for the records that edges act on, and Listener for
// what edges say of their progress on the bus. It touches no channel and no event.
//
// Life: New does no I/O. Run blocks until its context ends; it has one goroutine for
// settle times, and where there are records one that supervises operations, one that
// hears progress, and at most four that call hooks. The calls of AdminService may be
// made before, during and after Run.
//
// Invariants: an operation is a record in presence/control, and whatever is needed to
// go on with it stands in the record or is said on the bus, so any router can go on with
// the work of one that died; no hook but "before" is called for an operation without a record;
// an operation that has ended never changes its state again.
//
// Limits: progress of 4,096 (operation, edge) pairs, hooks of four operations at a time,
// eight hooks an operation, and those of package settle below it.
//
// Left out on purpose: moving clients (edges do that when they see a record), the
// format of the records and their storage (presence/control), who may call (the API's
// keys).
package operations

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// Membership is this router's view of the cluster. presence.Cluster is one. No method
// blocks; what they return must not be changed.
type Membership interface {
	Snapshot() *presence.Snapshot
	LastHeard(presence.Key) time.Time
	Silent(presence.Key) bool
	Figures() map[presence.Key]*presence.Figure
}

// Messenger is how a router hears what edges tell all members (presence/nats.Messenger).
// heard is called from one goroutine until ctx ends.
type Messenger interface {
	Listen(ctx context.Context, topic string, heard func(message []byte)) error
}

// Deps is what a Service calls. Only Members is needed.
type Deps struct {
	Members   Membership
	Control   *control.Control // nil: this router has no part in operations, and says so
	Messenger Messenger        // what edges say of operations; nil: only their records
	Stop      <-chan struct{}  // closed when the router leaves and streams must end
}

// errStopping ends the streams of a router that leaves.
var errStopping = status.Error(codes.Unavailable, "the router is leaving")

// Service is the AdminService of one router.
type Service struct {
	routerv1.UnimplementedAdminServiceServer

	// immutable after New
	cfg       Config
	cluster   cluster
	control   *control.Control // nil: none
	messenger Messenger        // nil: none
	stop      <-chan struct{}
	log       *slog.Logger
	progress  *progressTable
	hooks     *hooks
	times     *settleTimes
}

// New makes a Service of a valid configuration.
func New(cfg Config, deps Deps) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{
		cfg: cfg, cluster: cluster{members: deps.Members, control: deps.Control}, control: deps.Control, messenger: deps.Messenger, stop: deps.Stop,
		log: cfg.Log, progress: newProgressTable(), hooks: newHooks(cfg.Now), times: newSettleTimes(cfg.Registry),
	}
}

// Run measures settle times and supervises operations until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.runSettleTimes(ctx) })
	if s.control != nil {
		g.Go(func() error { return newSupervisor(s).run(ctx) })
	}
	if s.messenger != nil {
		g.Go(func() error { return s.messenger.Listen(ctx, topicProgress, s.progress.hear) })
	}
	return g.Wait()
}
