// Package gateway is the edge: it holds the clients' sockets. It accepts, checks
// and admits them, keeps their subscriptions, and delivers what its channel table
// (package feed) has in order.
//
// cmd makes an Edge and runs it; it calls a feed.Table (bus, routers), an Upstream
// (publishes and reads), a Verifier (tokens) and the membership view.
//
// Life and goroutines: the door (one) accepts and reads requests; the pool (a few)
// checks requests and tokens; loops (one a core) own the conns; callers (bounded)
// wait for routers; the table's shards order events. No goroutine, buffer or timer
// for an idle conn. Run owns them all, turns the governor (serving, leaving, evacuated)
// and leaves in order: it refuses newcomers, hands its clients to other edges within
// DrainDeadline, then stops the parts.
//
// Invariants: I2 a client sees offsets in order, each at most once; I3 what it
// missed is delivered or announced; I5 who comes in is within lanes and confirmed
// grants (package admission); I6 conns do not fall because others arrive; I7
// queues are bounded in bytes; I11 a refusal is one write that says when to come
// back.
//
// Left out on purpose: the order and repair of channels (feed), the plan of a drain
// (presence/drain).
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/sendq"
	"github.com/spillway-io/spillway/gateway/internal/tlsconn"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
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

// Verifier checks tokens; CPU only. nil: none are good.
type Verifier interface {
	Verify(token string, now time.Time) (*auth.Claims, error)
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

	Tickets     ticket.Keys // nil: no tickets
	Revocations Revocations // nil: none
	Messenger   Messenger   // with other edges; nil: alone
	Lag         Lag         // of the routers' backfill; nil: nobody tells
	Peers       Peers       // what other edges are asked; nil: nobody, so that no room is granted
	Operations  Operations  // nil: only signals make the edge leave
}

// Edge is one edge. New makes it, Run works until its context ends.
type Edge struct {
	// immutable after New
	cfg         Config
	log         *slog.Logger
	upstream    Upstream
	members     Membership
	verifier    Verifier
	tickets     *ticket.Box // nil: none
	revocations Revocations // nil: none
	messenger   Messenger   // nil: alone
	peers       Peers       // nil: nobody
	operations  Operations  // nil: none
	governor    *governor
	metrics     *metrics
	series      *series
	gate        *gate
	lag         Lag // nil: nobody tells
	door        *door
	loops       []*loop
	table       *feed.Table
	checks      *pool
	callers     callers
	born        time.Time
	working     context.Context // ends when callers must
	stopWork    context.CancelFunc

	takeovers takeovers
	backlogs  backlogs
	revoker   revoker

	// atomic
	hot        atomic.Pointer[hot] // replaced by Reload
	conns      atomic.Int64        // admitted and not superseded
	superseded atomic.Int64        // conns that were left for another one of their session
	welcomes   atomic.Uint32       // sessions so far
	movable    atomic.Int64        // conns whose clients can move
	critical   atomic.Int64
	catching   atomic.Int64 // connected and not yet caught up
	next       atomic.Uint32
	draining   atomic.Bool
	ready      atomic.Bool
	past       atomic.Pointer[past] // replaced by the governor
	reload     atomic.Int64         // Unix nanoseconds of the last reload slot given out
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

// reserved descriptors let the door refuse when there are none left.
const reserved = 16

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
	reserve, err := poller.NewReserve(reserved)
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
		cfg: cfg, log: cfg.Log, upstream: deps.Upstream, members: deps.Members, verifier: deps.Verifier,
		metrics: newMetrics(cfg.Registry), series: newSeries(time.Now()),
		callers: callers{slots: make(chan struct{}, cfg.MaxCalls)},
		born:    time.Now().Add(-time.Second), // second 0 means "none"

		revocations: deps.Revocations, messenger: deps.Messenger, peers: deps.Peers, operations: deps.Operations,
		governor: newGovernor(),
	}
	if deps.Tickets != nil {
		e.tickets = ticket.New(cfg.Cluster, deps.Tickets)
	}
	e.metrics.series = e.series
	e.lag = deps.Lag
	e.hot.Store(newHot(cfg.Settings, cfg.MaxFragments))
	e.past.Store(new(past))
	e.gate = newGate(e)
	e.working, e.stopWork = context.WithCancel(context.Background())
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	e.door = newDoor(e, ln, p, reserve)
	if cfg.TLS != nil {
		if e.door.secure, err = newSecure(&e.cfg, e.settings(), p.Wake, time.Now()); err != nil {
			return nil, err
		}
	}
	sinks := make([]feed.Sink, cfg.loops())
	for i := range sinks {
		if p, err = newPoller(); err != nil {
			return nil, err
		}
		l := newLoop(i, e, p)
		e.loops, sinks[i] = append(e.loops, l), l
	}
	fc := feed.Default()
	if deps.Feed != nil {
		fc = *deps.Feed
	}
	fc.Encode, fc.View, fc.Log, fc.Registry = encodeEvent, deps.View, cfg.Log, cfg.Registry
	if e.table, err = feed.New(fc, deps.Bus, deps.Asker, sinks); err != nil {
		return nil, err
	}
	if e.revocations != nil {
		e.revocations.OnRevocation(e.onRevocation)
	}
	return e, nil
}

// encodeEvent makes the one WebSocket frame that all JSON subscribers share.
func encodeEvent(channel string, _ uint64, ev *gatewayv1.BusEvent) []byte {
	body := scratch.Get().(*[]byte)
	*body = wire.AppendEvent((*body)[:0], channel, ev)
	frame := wsframe.AppendFrame(make([]byte, 0, wsframe.HeaderSize(len(*body))+len(*body)), wsframe.Text, *body)
	scratch.Put(body)
	return frame
}

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// Addr is where clients connect.
func (e *Edge) Addr() string { return e.door.listener.Addr().String() }

// Ready says that the edge has joined and is not leaving (readyz).
func (e *Edge) Ready() bool { return e.ready.Load() }

// Load fills in this edge's load figure.
func (e *Edge) Load(f *presence.Figure) {
	f.Conns = uint64(e.conns.Load())
	f.Subscriptions, f.Channels = uint64(e.metrics.subscriptionCount()), uint64(e.table.Channels())
	f.Movable, f.Critical = uint64(e.movable.Load()), uint64(e.critical.Load())
	e.loadAdmission(f)
	e.loadSeries(f)
}

// Run serves until ctx ends or a drain operation of this edge is found, then hands its
// clients to others within DrainDeadline and returns nil. abort ends that at once. It
// must be called once.
func (e *Edge) Run(ctx, abort context.Context) error {
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	e.checks = newPool(max(2, e.cfg.loops()), e.cfg.MaxCalls)
	g, failing := errgroup.WithContext(parts)
	// The parts end with stopParts or when one fails; Run waits for them below.
	g.Go(func() error { return e.table.Run(failing) })
	for _, l := range e.loops {
		g.Go(func() error { return l.run(failing) })
	}
	g.Go(func() error { return e.door.run(failing) })
	g.Go(func() error { e.announce(ctx); return nil })
	if e.messenger != nil {
		g.Go(func() error { e.sayTakeovers(failing); return nil })
		g.Go(func() error { e.hearTakeovers(failing); return nil })
	}
	if e.peers != nil {
		g.Go(func() error { e.serveGrants(failing); return nil })
	}
	e.govern(bounds{leave: ctx, abort: abort, failing: failing})
	stopParts()
	e.stopWork()
	err := g.Wait()
	e.callers.wg.Wait()
	e.governor.wait.Wait()
	e.checks.close()
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

// released counts a conn out.
func (e *Edge) released() { e.metrics.conns.Set(float64(e.conns.Add(-1))) }

// queueLimits: a history reply of a whole frame fits behind a full queue of events.
func (e *Edge) queueLimits() sendq.Limits {
	l := sendq.DefaultLimits()
	l.MaxBytes = e.cfg.SendQueueBytes
	l.ReserveBytes = wire.MaxFrameBytes + 256<<10
	l.ReserveItems = max(l.ReserveItems, 4096)
	return l
}

func (e *Edge) nextLoop() *loop { return e.loops[int(e.next.Add(1))%len(e.loops)] }

func (e *Edge) verify(token string) (*auth.Claims, error) {
	if e.verifier == nil {
		return nil, errors.New("this edge takes no tokens")
	}
	return e.verifier.Verify(token, time.Now())
}

// seconds is the coarse clock of the loops: from 1 at birth.
func (e *Edge) seconds(now time.Time) uint32 { return uint32(now.Sub(e.born) / time.Second) }

// reloadSlot spreads the reloads that a loss causes: each edge hands out its share
// of the cluster's rate, one client a slot.
func (e *Edge) reloadSlot() uint32 {
	edges := max(len(e.members.Snapshot().Edges()), 1)
	step := int64(time.Second) * int64(edges) / int64(e.settings().ReloadPerSecond)
	for {
		now, last := time.Now().UnixNano(), e.reload.Load()
		slot := max(now, last+step)
		if e.reload.CompareAndSwap(last, slot) {
			return uint32(min((slot-now)/int64(time.Millisecond), int64(10*time.Minute/time.Millisecond)))
		}
	}
}

func (e *Edge) jitterMS(least, most time.Duration) uint32 {
	return uint32((least + mathrand.N(most-least)).Milliseconds())
}

func newSessionID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

func keyOf(m *presence.Member) presence.Key { return presence.KeyOf(m) }

// Close gives the port back if Run was never called. After Run it does nothing.
func (e *Edge) Close() {
	e.door.listener.Close()
	if e.door.reserve != nil {
		e.door.reserve.Close()
	}
}
