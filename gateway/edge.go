package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/gateway/door"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/pool"
	"github.com/spillway-io/spillway/gateway/internal/sendq"
	"github.com/spillway-io/spillway/gateway/internal/tlsconn"
	"github.com/spillway-io/spillway/gateway/leave"
	"github.com/spillway-io/spillway/gateway/load"
	"github.com/spillway-io/spillway/gateway/settings"
	"github.com/spillway-io/spillway/gateway/targets"
	"github.com/spillway-io/spillway/gateway/ticket"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Membership is what an edge asks of the cluster (presence.Cluster).
type Membership interface {
	Snapshot() *presence.Snapshot
	Figures() map[presence.Key]*presence.Figure
	Joined() <-chan struct{}
	SetState(gatewayv1.State)
}

// Deps are the parts an edge works with; all are the caller's to close.
type Deps struct {
	Bus      feed.Bus
	Asker    feed.Asker
	Upstream Upstream
	Members  Membership
	View     feed.View
	Verifier Verifier
	Feed     *feed.Config // nil: feed.Default; Encode, View, Log and Registry are set here

	Tickets     ticket.Keys      // nil: no tickets
	Revocations Revocations      // nil: none
	Messenger   Messenger        // with other edges; nil: alone
	Lag         door.Lag         // of the routers' backfill; nil: nobody tells
	Peers       leave.Peers      // what other edges are asked; nil: nobody, so that no room is granted
	Operations  leave.Operations // nil: only signals make the edge leave
}

// Edge is one edge. New makes it, Run works until its context ends.
type Edge struct {
	// immutable after New
	cfg         Config
	log         *slog.Logger
	clock       clock
	upstream    Upstream
	members     Membership
	targets     *targets.View
	messenger   Messenger   // nil: alone
	peers       leave.Peers // nil: nobody
	credentials *credentials
	governor    *leave.Governor
	metrics     *metrics
	series      *load.Series
	door        *door.Door
	gate        *door.Gate
	loops       []*loop
	table       *feed.Table
	checks      *pool.Pool
	callers     callers
	working     context.Context // ends when callers must
	stopWork    context.CancelFunc

	takeovers takeovers
	revoker   revoker
	counts    counts
	reloads   reloads

	// atomic
	hot      atomic.Pointer[hot] // replaced by Reload
	welcomes atomic.Uint32       // sessions so far
	ready    atomic.Bool
}

// callers bounds the goroutines that wait for routers.
type callers struct {
	slots chan struct{}
	wg    sync.WaitGroup
}

// start runs f on a goroutine of its own; false: too many are under way.
func (c *callers) start(f func()) bool {
	select {
	case c.slots <- struct{}{}:
	default:
		return false
	}
	c.wg.Go(func() { // ends with f, which has a deadline; Run waits
		defer func() { <-c.slots }()
		f()
	})
	return true
}

// New validates cfg and listens, so that Addr is known and a port that is taken
// is an error here.
func New(cfg Config, deps Deps) (*Edge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ln, err := poller.Listen(context.Background(), cfg.Listen, poller.ListenConfig{})
	if err != nil {
		return nil, err
	}
	reserve, err := poller.NewReserve(door.Reserved)
	if err != nil {
		ln.Close()
		return nil, err
	}
	newPoller := func() (poller.Poller, error) {
		p, err := poller.NewEpoll()
		if err != nil || cfg.TLS == nil {
			return p, err
		}
		return tlsconn.NewPoller(p), nil
	}
	e, err := newEdge(cfg, deps, ln, reserve, newPoller)
	if err != nil {
		ln.Close()
	}
	return e, err
}

// newEdge is New over any listener; tests give one in memory.
func newEdge(cfg Config, deps Deps, ln poller.Listener, reserve *poller.Reserve, newPoller func() (poller.Poller, error)) (*Edge, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Edge{
		cfg: cfg, log: cfg.Log, upstream: deps.Upstream, members: deps.Members, messenger: deps.Messenger, peers: deps.Peers,
		clock:   clock{born: time.Now().Add(-time.Second)}, // second 0 means "none"
		targets: targets.New(targets.Self{ID: cfg.ID, Region: cfg.Region, AdvertiseURL: cfg.AdvertiseURL}, deps.Members),
		metrics: newMetrics(cfg.Registry), series: load.New(time.Now()),
		checks: pool.New(cfg.MaxCalls), callers: callers{slots: make(chan struct{}, cfg.MaxCalls)},
	}
	e.counts.metrics, e.takeovers.edge, e.reloads.edge = e.metrics, e, e
	e.hot.Store(newHot(cfg.Hot, &cfg))
	e.credentials = &credentials{
		edge: cfg.ID, anonymous: cfg.Anonymous, verifier: deps.Verifier, revocations: deps.Revocations, metrics: e.metrics,
	}
	if deps.Tickets != nil {
		e.credentials.box = ticket.New(cfg.Cluster, deps.Tickets)
	}
	e.governor = leave.New(leave.Config{
		ID: cfg.ID, Region: cfg.Region, Born: e.clock.born, CloseWait: cfg.CloseWait, Log: cfg.Log, Registry: cfg.Registry,
	}, leave.Deps{
		Edge: (*leavingEdge)(e), Targets: e.targets, Operations: deps.Operations, Peers: deps.Peers,
		Settings: func() *settings.Hot { return &e.settings().Settings },
	})
	e.working, e.stopWork = context.WithCancel(context.Background())
	sinks := make([]feed.Sink, cfg.loops())
	for i := range sinks {
		p, err := newPoller()
		if err != nil {
			return nil, err
		}
		l := newLoop(i, e, p)
		e.loops, sinks[i] = append(e.loops, l), l
	}
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	if err = e.openDoor(ln, reserve, p, deps.Lag); err != nil {
		return nil, err
	}
	fc := feed.Default()
	if deps.Feed != nil {
		fc = *deps.Feed
	}
	fc.Encode, fc.View, fc.Log, fc.Registry = encodeEvent, deps.View, cfg.Log, cfg.Registry
	if e.table, err = feed.New(fc, deps.Bus, deps.Asker, sinks); err != nil {
		return nil, err
	}
	e.revoker.loops, e.revoker.clock = e.loops, e.clock
	if deps.Revocations != nil {
		deps.Revocations.OnRevocation(e.revoker.hear)
	}
	return e, nil
}

// openDoor joins the door with the rest.
func (e *Edge) openDoor(ln poller.Listener, reserve *poller.Reserve, p poller.Poller, lag door.Lag) (err error) {
	loops := make([]door.Loop, len(e.loops))
	for i, l := range e.loops {
		loops[i] = l
	}
	c := &e.cfg
	e.door, err = door.New(door.Config{
		ID: c.ID, Region: c.Region, Origins: c.Origins, TrustedProxies: c.TrustedProxies, TLS: c.TLS,
		MaxHandshakes: c.MaxHandshakes, HandshakeTimeout: c.HandshakeTimeout,
		Log: c.Log, Registry: c.Registry, Series: e.series,
	}, door.Deps{
		Listener: ln, Poller: p, Reserve: reserve, Loops: loops,
		Members: e.members, Targets: e.targets, Tickets: e.credentials, Lag: lag,
		Submit: e.checks.Submit, Conns: func() int { return int(e.counts.conns.Load()) }, Spent: e.takeovers.used,
	}, c.Hot)
	if err != nil {
		return err
	}
	e.gate = e.door.Gate
	return nil
}

// Addr is where clients connect.
func (e *Edge) Addr() string { return e.door.Addr() }

// Ready says that the edge has joined and is not leaving (readyz).
func (e *Edge) Ready() bool { return e.ready.Load() }

// Load fills in this edge's load figure.
func (e *Edge) Load(f *presence.Figure) {
	f.Conns = uint64(e.counts.conns.Load())
	f.Subscriptions, f.Channels = uint64(e.metrics.subscriptionCount()), uint64(e.table.Channels())
	f.Movable, f.Critical = uint64(e.counts.movable.Load()), uint64(e.counts.critical.Load())
	f.CatchingUp = uint64(max(e.counts.catchingUp.Load(), 0))
	e.gate.Load(f)
	routers := make(map[string]uint64)
	for _, m := range e.members.Snapshot().Routers() {
		routers[m.Id] = m.Incarnation
	}
	heard := e.members.Figures()[presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: e.cfg.ID}]
	f.Windows = e.series.Tell(f.Seq, heard.GetSeq(), routers, time.Now())
}

// Run serves until ctx ends or a drain operation of this edge is found, then moves its
// clients to others within DrainDeadline and returns nil. abort ends that at once. It
// must be called once.
func (e *Edge) Run(ctx, abort context.Context) error {
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	e.checks.Start(max(2, e.cfg.loops()))
	g, failing := errgroup.WithContext(parts)
	// The parts end with stopParts or when one fails; Run waits for them below.
	g.Go(func() error { return e.table.Run(failing) })
	for _, l := range e.loops {
		g.Go(func() error { return l.run(failing) })
	}
	g.Go(func() error { return e.door.Run(failing) })
	g.Go(func() error { e.announce(ctx); return nil })
	if e.messenger != nil {
		g.Go(func() error { e.takeovers.say(failing); return nil })
		g.Go(func() error { e.takeovers.hear(failing); return nil })
	}
	if e.peers != nil {
		g.Go(func() error { leave.Answer(failing, e.peers, e.cfg.ID, e.gate, e.log); return nil })
	}
	e.governor.Run(leave.Bounds{Leave: ctx, Abort: abort, Failing: failing})
	stopParts()
	e.stopWork()
	err := g.Wait()
	e.callers.wg.Wait()
	e.checks.Close()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("edge: %w", err)
	}
	return nil
}

// announce tells when the edge has joined; clients are served before that too.
func (e *Edge) announce(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-e.members.Joined():
		e.ready.Store(true)
	}
}

// queueLimits: a history reply of a whole frame fits behind a full queue of events.
func queueLimits(events int) sendq.Limits {
	l := sendq.DefaultLimits(events)
	l.ReserveBytes = wire.MaxFrameBytes + 256<<10
	l.ReserveItems = max(l.ReserveItems, 4096)
	return l
}

func newSessionID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// Close gives the port back if Run was never called. After Run it does nothing.
func (e *Edge) Close() { e.door.Close() }
