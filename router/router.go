// Package router publishes: it numbers the events of each channel, brings them to
// the store, fans them out on the bus, and answers edges that ask what they
// have missed.
//
// Its rooms: api is what backends, edges and other routers call; operations is the
// control side; namespace and channel have the words that all of them share; history
// and bus adapt the store and NATS. The root numbers, stores, reads and hands over, and
// joins the rooms. It calls a history.Store, a Bus, the Membership and other routers
// (api.Peers); cmd joins them.
//
// Life: New does no I/O; Listen and ListenHTTP open the ports; Run serves until its
// context ends, then drains and returns when everything it started has ended. Goroutines:
// the committers, one for channels without a store, one that hands channels over and
// one for each router that gets some, one that forms batches of reads and one for each
// batch (at most Config.Reads), one each for views, quiet heads, retention and uses of
// channels, one for each router that publications are passed on to, and those of api
// and operations.
//
// Invariants: an acked event of a committed namespace is in the store, and is on the
// bus only after that (I1); per channel and epoch offsets have no holes (I2); answers
// come from memory only while it is trusted (owner.go); every queue is bounded
// and counts what it refuses (I7).
//
// Left out on purpose: sessions and subscriptions (edges), rosters.
package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/operations"
)

// Deps is what a Router calls. All but Control and Messenger are needed; they outlive it.
type Deps struct {
	Store   history.Store
	Bus     Bus
	Members Membership
	Peers   api.Peers

	Control   *control.Control     // operations, revocations, settings; nil: none of them
	Messenger operations.Messenger // what edges say of operations; nil: only their records
}

// Router is one node of the router tier.
type Router struct {
	// immutable after New
	cfg        Config
	store      history.Store
	members    Membership
	peers      api.Peers
	log        *slog.Logger
	metrics    *metrics
	namespaces *namespace.Set
	table      *table
	own        *ownership
	sequencer  *sequencer
	reads      *reads
	fan        *fan
	hand       *handover
	keeper     *keeper
	operations *operations.Service
	api        *api.Server
	stop       chan struct{}   // closed when streams must end
	work       context.Context // of calls, which may outlive who caused them; cut ends it
	cut        context.CancelFunc

	// atomic
	ready   atomic.Bool
	streams sync.WaitGroup // goroutines of streams on which channels come
	calls   sync.WaitGroup // goroutines that give channels and pass publications on
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
	r := &Router{
		cfg: cfg, store: deps.Store, members: deps.Members, peers: deps.Peers, log: cfg.Log, stop: make(chan struct{}),
	}
	r.work, r.cut = context.WithCancel(context.Background())
	r.metrics = newMetrics(cfg.Registry, r.sizes())
	r.operations = operations.New(cfg.operations(), operations.Deps{Members: deps.Members, Control: deps.Control, Messenger: deps.Messenger, Stop: r.stop})
	r.namespaces = namespace.NewSet(r.cfg.Namespaces, r.cfg.OpenNamespaces)
	r.table = newTable(cfg.CacheBytes, r.metrics)
	r.own = newOwnership(&r.cfg, deps.Members)
	r.fan = &fan{cfg: &r.cfg, bus: deps.Bus, metrics: r.metrics}
	r.sequencer = newSequencer(&r.cfg, r.table, r.own, deps.Store, r.fan, r.metrics, r.log)
	r.reads = newReads(&r.cfg, deps.Store, r.table, r.own, r.metrics, r.log)
	r.hand = newHandover(r)
	r.keeper = newKeeper(&r.cfg, r.table, deps.Store, r.metrics, r.log)
	r.api = api.New(r.cfg.api(), api.Deps{
		Channels: channels{r}, Views: channels{r}, Peers: deps.Peers, Namespaces: r.namespaces,
		Admin: r.operations, Handover: handoverService{Router: r}, Stop: r.stop,
	})
	return r, nil
}

func (r *Router) sizes() *sizes {
	return &sizes{
		channels:    func() float64 { return float64(r.table.channels.Load()) },
		cacheBytes:  func() float64 { return float64(r.table.bytes.Load()) },
		queueEvents: func() float64 { return float64(r.sequencer.events.Load()) },
		queueBytes:  func() float64 { return float64(r.sequencer.bytes.Load()) },
		readQueue:   func() float64 { return float64(r.reads.depth()) },
		readsPeak:   func() float64 { return float64(r.reads.peak.Load()) },
	}
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
	f.Channels = uint64(max(0, r.table.channels.Load()))
}

// Heard takes every load figure that comes; from any goroutine.
func (r *Router) Heard(f *presence.Figure) { r.operations.Heard(f) }

// Gone takes every member that is no more; from any goroutine.
func (r *Router) Gone(m *presence.Member, left bool) { r.operations.Gone(m, left) }

// Ready says that the router has joined and is not leaving.
func (r *Router) Ready() bool { return r.ready.Load() }

func (r *Router) stopping() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// Run serves until ctx ends, then drains. It may be called once.
func (r *Router) Run(ctx context.Context) error {
	if err := errors.Join(r.Listen(ctx), r.ListenHTTP(ctx)); err != nil {
		return err
	}
	// The parts outlive ctx: they end after the last call was answered.
	parts, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, failed := errgroup.WithContext(parts)
	for range r.cfg.Committers {
		g.Go(func() error { return r.sequencer.run(parts, &r.sequencer.committed, r.sequencer.commit) })
	}
	g.Go(func() error { return r.sequencer.run(parts, &r.sequencer.volatile, r.sequencer.commitVolatile) })
	g.Go(func() error { return r.own.run(parts) })
	g.Go(func() error { return r.reads.run(parts) })
	g.Go(func() error { return r.fan.run(parts) })
	g.Go(func() error { return r.hand.run(parts) })
	g.Go(func() error { return r.retention(parts) })
	g.Go(func() error { return r.keeper.run(parts, r.cfg.StoreTimeout) })
	g.Go(func() error { return r.operations.Run(parts) })
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
	pause(fresh, r.cfg.DrainDelay) // calls are served while the others take notice
	close(r.stop)
	r.api.Stop(fresh)
	r.rest(fresh)
	r.members.SetState(gatewayv1.State_STATE_LEFT)
}

// rest waits for what streams and calls have left behind; when ctx ends it is cut off.
func (r *Router) rest(ctx context.Context) {
	defer r.cut()
	r.hand.end()
	ended := make(chan struct{})
	// It ends with the last of them, soon after the cut; rest waits for it.
	go func() {
		r.api.Wait()
		r.streams.Wait()
		r.calls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		r.log.Warn("calls to other routers were cut off: they did not end in time")
		r.cut()
		<-ended
	}
}

// handOver gives the channels to the routers that stay.
func (r *Router) handOver(ctx context.Context) {
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.HandoverTimeout)
	defer cancel()
	r.hand.leave(fresh)
}
