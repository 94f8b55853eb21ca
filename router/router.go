// Package router joins the rooms of a router, runs them, and leaves in order. It is one
// node of the tier that numbers the events of each channel, brings them to the store,
// fans them out on the bus, and answers edges that ask what they have missed.
//
// Its rooms, each a package that knows only those below it:
//
//	api          what backends, edges and other routers call; forwarding to the owner
//	operations   drains, evacuations, hooks, settle times, settings
//	retention    deletes what is not kept
//	handover     channels move between routers
//	writer       batches of runs to the store
//	backfill     batches of reads
//	table        the shards that own the channels
//	renewal      new epochs for channels of which the store has lost history
//	channel      one channel, a pure machine
//	views        which router owns a channel
//	namespace    the settings of channels
//	history, bus the store and NATS
//
// cmd makes a Router and runs it; it calls a history.Store, a table.Bus, the Membership and
// other routers (handover.Peers).
//
// Life: New does no I/O; Listen and ListenHTTP open the ports; Run serves until its
// context ends, then drains and returns when everything that the rooms have started has
// ended. The root itself owns no goroutine but theirs.
//
// Invariants: an acked event of a committed namespace is in the store, and is on the
// bus only after that (I1); per channel and epoch offsets have no holes (I2); answers
// come from memory only while it is trusted; every queue is bounded and counts what it
// refuses (I7).
//
// Left out on purpose: sessions and subscriptions (edges), rosters.
package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/backfill"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/handover"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/metered"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/operations"
	"github.com/spillway-io/spillway/router/renewal"
	"github.com/spillway-io/spillway/router/retention"
	"github.com/spillway-io/spillway/router/table"
	"github.com/spillway-io/spillway/router/views"
	"github.com/spillway-io/spillway/router/writer"
)

// Membership is the router's own place in the cluster and its view of it.
// presence.Cluster is one. No method blocks.
type Membership interface {
	views.Membership
	operations.Membership
	Joined() <-chan struct{} // closed when this router is in the registry
	SetState(gatewayv1.State)
}

// Deps is what a Router calls. All but Control and Messenger are needed; they outlive it.
type Deps struct {
	Store   history.Store
	Bus     table.Bus
	Members Membership
	Peers   handover.Peers

	Control   *control.Control     // operations, revocations, settings; nil: none of them
	Messenger operations.Messenger // what edges say of operations; nil: only their records
}

// Router is one node of the router tier.
type Router struct {
	// immutable after New
	cfg        Config
	members    Membership
	log        *slog.Logger
	namespaces *namespace.Set
	views      *views.Views
	table      *table.Table
	writer     *writer.Writer
	backfill   *backfill.Backfill
	handover   *handover.Handover
	retention  *retention.Retention
	operations *operations.Service
	api        *api.Server
	stop       chan struct{} // closed when streams must end

	ready atomic.Bool
}

// New checks the configuration and joins the parts.
func New(cfg Config, deps Deps) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("router configuration: %w", err)
	}
	if deps.Store == nil || deps.Bus == nil || deps.Members == nil || deps.Peers == nil {
		return nil, errors.New("router: store, bus, members and peers are needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Router{cfg: cfg, members: deps.Members, log: cfg.Log, stop: make(chan struct{})}
	store := metered.New(deps.Store, cfg.Registry)
	r.namespaces = namespace.NewSet(cfg.Namespaces, cfg.OpenNamespaces)
	renewer := renewal.New(store, r.log, cfg.Registry)
	r.views = views.New(cfg.views(), deps.Members)
	// The table calls rooms above it through these functions, which are set by then.
	r.table = table.New(cfg.table(), table.Deps{
		Bus: deps.Bus, Views: r.views,
		Read:   func(q *channel.ReadQuery) { r.backfill.Add(q) },
		Pass:   func(to string, pubs []*channel.Publication) { r.handover.Pass(to, pubs) },
		Seek:   func(name string) { r.handover.Seek(name) },
		Offers: func(to string) { r.handover.Offers(to) },
		InUse:  func(name string) bool { return r.retention.InUse(name) },
	})
	r.writer = writer.New(cfg.writer(), store, r.table, r.views, renewer, r.log)
	r.backfill = backfill.New(cfg.backfill(), store, renewer, r.table.Results, r.log)
	r.retention = retention.New(cfg.retention(), store, r.namespaces, r.views, r.table.WithEvents, r.log)
	r.handover = handover.New(cfg.handover(), handover.Deps{
		Channels: r.table, Namespaces: r.namespaces, Views: r.views, Peers: deps.Peers, Log: r.log,
		Forward: func(ctx context.Context, to *presence.Member, pubs []*channel.Publication) {
			r.api.Forward(ctx, to, pubs)
		},
	})
	r.operations = operations.New(cfg.operations(), operations.Deps{Members: deps.Members, Control: deps.Control, Messenger: deps.Messenger, Stop: r.stop})
	r.api = api.New(cfg.api(), api.Deps{
		Channels: channels{r.table, r.backfill}, Views: r.views, Peers: deps.Peers, Namespaces: r.namespaces,
		Admin: r.operations, Handover: handover.Service{Handover: r.handover, Stop: r.stop}, Stop: r.stop,
	})
	return r, nil
}

// channels is what the api talks to.
type channels struct {
	*table.Table
	*backfill.Backfill
}

// Listen opens the port of the gRPC API, so that Addr is known before Run. Run calls it
// if nobody has.
func (r *Router) Listen(ctx context.Context) error { return r.api.Listen(ctx) }

// ListenHTTP opens the port of the HTTP API, if there is one.
func (r *Router) ListenHTTP(ctx context.Context) error { return r.api.ListenHTTP(ctx) }

// Addr is where the gRPC server listens; "" before Listen.
func (r *Router) Addr() string { return r.api.Addr() }

// HTTPAddr is where the HTTP API listens; "" before ListenHTTP and without one.
func (r *Router) HTTPAddr() string { return r.api.HTTPAddr() }

// Load fills in this router's part of its load figure.
func (r *Router) Load(f *presence.Figure) {
	f.Conns = uint64(max(0, r.api.Edges()))
	f.Channels = uint64(max(0, r.table.Channels()))
}

// Heard takes every load figure that comes; from any goroutine.
func (r *Router) Heard(f *presence.Figure) { r.operations.Heard(f) }

// Gone takes every member that is no more; from any goroutine.
func (r *Router) Gone(m *presence.Member, left bool) { r.operations.Gone(m, left) }

// Ready says that the router has joined and is not leaving.
func (r *Router) Ready() bool { return r.ready.Load() }

// Run serves until ctx ends, then drains. It may be called once.
func (r *Router) Run(ctx context.Context) error {
	if err := errors.Join(r.Listen(ctx), r.ListenHTTP(ctx)); err != nil {
		return err
	}
	// The parts outlive ctx: they end after the last call was answered.
	parts, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, failed := errgroup.WithContext(parts)
	for _, run := range []func(context.Context) error{
		r.views.Run, r.table.Run, r.writer.Run, r.backfill.Run, r.handover.Run, r.retention.Run, r.operations.Run,
	} {
		g.Go(func() error { return run(parts) })
	}
	r.api.Start(g)
	r.log.Info("router listens", "id", r.cfg.ID, "address", r.Addr(), "http", r.HTTPAddr())
	r.wait(ctx, failed)
	r.drain(ctx)
	end()
	return g.Wait()
}

// serving says whether the router takes work.
func (r *Router) serving(on bool) {
	r.ready.Store(on)
	r.api.Serving(on)
}

// wait is ready once joined, and returns when ctx ends or a part has failed.
func (r *Router) wait(ctx, failed context.Context) {
	select {
	case <-r.members.Joined():
		r.serving(true)
		r.log.Info("router serves", "id", r.cfg.ID)
	case <-ctx.Done():
		return
	case <-failed.Done():
		return
	}
	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
}

// drain leaves in order: others take the channels over, nobody sends new work, then
// streams and calls end, then the rest is cut off.
func (r *Router) drain(ctx context.Context) {
	r.serving(false)
	r.members.SetState(gatewayv1.State_STATE_DRAINING)
	r.handOver(ctx)
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.DrainDelay+r.cfg.StopTimeout)
	defer cancel()
	select {
	case <-time.After(r.cfg.DrainDelay): // calls are served while the others take notice
	case <-fresh.Done():
	}
	close(r.stop)
	r.api.Stop(fresh)
	r.handover.End(fresh)
	r.api.Wait()
	r.members.SetState(gatewayv1.State_STATE_LEFT)
}

// handOver gives the channels to the routers that stay.
func (r *Router) handOver(ctx context.Context) {
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.HandoverTimeout)
	defer cancel()
	r.handover.Leave(fresh)
}
