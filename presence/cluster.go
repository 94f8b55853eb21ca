package presence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/proto/schema"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// tickEvery is how often the view looks at the clock.
const tickEvery = 500 * time.Millisecond

// Cluster is one node's part in the cluster and its view of it.
type Cluster struct {
	// immutable after New (Self.Address until Run)
	cfg      Config
	registry Registry
	figures  LoadFigures
	log      *slog.Logger
	metrics  *metrics
	joined   chan struct{} // closed under mu
	update   chan struct{} // capacity 1: the record should be written anew

	// atomic
	snapshot atomic.Pointer[Snapshot] // stored under mu
	losses   atomic.Uint64
	state    atomic.Int32
	seq      atomic.Uint64

	mu       sync.Mutex // guards all below
	view     *view
	changed  chan struct{} // closed at the next change
	isJoined bool
	listed   bool
}

// New makes a Cluster; Run makes it live. A bad Config is reported by Run.
func New(cfg Config, registry Registry, figures LoadFigures) *Cluster {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	schema.FillZero(&cfg)
	if cfg.Self != nil {
		cfg.Self = fillIn(cfg.Self, cfg.Now())
	}
	c := &Cluster{
		cfg: cfg, registry: registry, figures: figures, log: cfg.Log,
		metrics: newMetrics(cfg.Registry),
		joined:  make(chan struct{}), update: make(chan struct{}, 1),
		view: newView(cfg.FigureInterval), changed: make(chan struct{}),
	}
	c.state.Store(int32(cfg.Self.GetState()))
	c.snapshot.Store(NewSnapshot(nil, 0))
	return c
}

func fillIn(m *Member, now time.Time) *Member {
	self := proto.CloneOf(m)
	if self.State == gatewayv1.State_STATE_UNSPECIFIED {
		self.State = gatewayv1.State_STATE_SERVING
	}
	if self.Incarnation == 0 {
		self.Incarnation = rand.Uint64() | 1
	}
	if self.StartedMs == 0 {
		self.StartedMs = uint64(now.UnixMilli())
	}
	return self
}

// Run registers, speaks, listens and watches until ctx ends; then the node
// has left, or two seconds were not enough to say so. It waits for registry and
// bus as long as they are away. Errors: a bad Config, a DuplicateError, a bus
// connection that was closed for good.
func (c *Cluster) Run(ctx context.Context) error {
	if err := c.cfg.Validate(); err != nil {
		return fmt.Errorf("membership: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	// Each part ends with ctx, or ends it by failing; Run waits for them all.
	g.Go(func() error { return c.registry.Watch(ctx, c.take) })
	g.Go(func() error {
		return c.registry.Register(ctx, Registration{
			Self: c.self, Update: c.update, Registered: c.registered, Lost: c.lost, KeepFailed: c.metrics.keepFailures.Inc,
		})
	})
	g.Go(func() error {
		return c.figures.Run(ctx, Listener{Own: c.figure, Heard: c.heard, Connected: c.connected, Dropped: c.dropped})
	})
	g.Go(func() error { return c.tick(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("membership: %w", err)
	}
	return nil
}

// Snapshot is the present view; the same pointer as long as nothing changed.
func (c *Cluster) Snapshot() *Snapshot { return c.snapshot.Load() }

// Changed is closed at the next change of the view, and when this node's own
// lease is lost. Take it before Snapshot: else a change can be missed.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Joined is closed once this node is registered and has seen the others.
func (c *Cluster) Joined() <-chan struct{} { return c.joined }

// LeaseLosses counts the times this node's own lease was lost, even for a moment.
func (c *Cluster) LeaseLosses() uint64 { return c.losses.Load() }

// SetState says what this node is doing; it is written at once, or when the
// registry is back, and stands in every load figure from now on.
func (c *Cluster) SetState(s gatewayv1.State) {
	c.state.Store(int32(s))
	select {
	case c.update <- struct{}{}:
	default: // a wake-up is waiting already, and it will see this state
	}
}

// SetAddress is for nodes that learn theirs when they listen; before Run only.
func (c *Cluster) SetAddress(address string) { c.cfg.Self.Address = address }

// ID is this node's member id.
func (c *Cluster) ID() string { return c.cfg.Self.Id }

// Incarnation of this node, whether it is registered yet or not: until the lease of one
// that died has run out, the registry shows that one under the same id.
func (c *Cluster) Incarnation() uint64 { return c.cfg.Self.Incarnation }

// LastHeard is when a member's last load figure came; zero: never.
func (c *Cluster) LastHeard(key Key) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.view.entries[key]; e != nil {
		return e.heard
	}
	return time.Time{}
}

// Silent says that a member, lease or not, is not heard on a bus that works:
// enough to send no more clients there.
func (c *Cluster) Silent(key Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.view.entries[key]
	return e != nil && c.view.busWorks(c.cfg.Now()) && c.view.silent(e)
}

// BusWorks says that load figures come at all. If not, those that are known may be of
// any age.
func (c *Cluster) BusWorks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.busWorks(c.cfg.Now())
}

// Figure is the newest one of a member; nil: none was heard. Not to be changed.
func (c *Cluster) Figure(key Key) *Figure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.view.entries[key]; e != nil {
		return e.figure
	}
	return nil
}

// Figures are the newest ones of all members that were heard. The map is the
// caller's, the figures are not to be changed.
func (c *Cluster) Figures() map[Key]*Figure {
	c.mu.Lock()
	defer c.mu.Unlock()
	figures := make(map[Key]*Figure, len(c.view.entries))
	for key, e := range c.view.entries {
		if e.figure != nil {
			figures[key] = e.figure
		}
	}
	return figures
}

func (c *Cluster) self() *Member {
	m := proto.CloneOf(c.cfg.Self)
	m.State = gatewayv1.State(c.state.Load())
	return m
}

func (c *Cluster) figure() (*Figure, time.Duration) {
	m := c.cfg.Self
	f := &Figure{
		Id: m.Id, Role: m.Role, Incarnation: m.Incarnation, Region: m.Region, Capacity: m.Capacity,
		Seq: c.seq.Add(1), State: gatewayv1.State(c.state.Load()),
	}
	if c.cfg.Load != nil {
		c.cfg.Load(f)
	}
	return f, figureInterval(c.cfg.FigureInterval, m.Role, len(c.Snapshot().Members()))
}

func (c *Cluster) registered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isJoined = true
	c.closeJoinedLocked()
}

func (c *Cluster) lost() {
	c.losses.Add(1)
	c.metrics.leaseLosses.Inc()
	c.log.Warn("own lease was lost; registering anew")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked() // whoever trusts by lease looks again
}

func (c *Cluster) take(change Change) {
	c.input(func(v *view, now time.Time) {
		switch {
		case change.Listed != ListNone:
			v.list(change.List, change.Revision, now)
			c.metrics.lists[change.Listed].Inc()
			c.listed = true
			c.closeJoinedLocked()
		case change.Put != nil:
			v.put(change.Put, change.Revision, now)
		case change.Deleted != nil:
			v.delete(*change.Deleted, change.Revision, now)
		}
	})
}

func (c *Cluster) closeJoinedLocked() {
	if !c.isJoined || !c.listed {
		return
	}
	select {
	case <-c.joined:
	default:
		close(c.joined)
	}
}

func (c *Cluster) heard(f *Figure) {
	c.metrics.heard.Inc()
	c.input(func(v *view, now time.Time) { v.heard(f, now) })
	if c.cfg.Heard != nil {
		c.cfg.Heard(f)
	}
}

func (c *Cluster) connected(up bool) {
	c.input(func(v *view, now time.Time) { v.bus(up, now) })
}

func (c *Cluster) dropped(why FigureDrop, n int) { c.metrics.dropped[why].Add(float64(n)) }

func (c *Cluster) tick(ctx context.Context) error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.input((*view).tick)
		}
	}
}

// input feeds the view, publishes a new snapshot if it changed, and logs what
// happened.
func (c *Cluster) input(feed func(*view, time.Time)) {
	for _, n := range c.step(feed) {
		c.metrics.count(n)
		c.logTransition(n)
		c.tellGone(n)
	}
}

func (c *Cluster) tellGone(n transition) {
	switch {
	case c.cfg.Gone == nil:
	case n.kind == transitionGone:
		c.cfg.Gone(n.member, n.reason == DepartureLeft)
	case n.kind == transitionReplaced:
		c.cfg.Gone(n.before, false)
	}
}

func (c *Cluster) step(feed func(*view, time.Time)) []transition {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	feed(c.view, now)
	up := 0.0
	if c.view.busWorks(now) {
		up = 1
	}
	c.metrics.busUp.Set(up)
	transitions := c.view.take()
	for _, n := range transitions {
		if n.kind.alters() {
			s := c.view.snapshot()
			c.snapshot.Store(s)
			c.metrics.members(s)
			c.wakeLocked()
			break
		}
	}
	return transitions
}

func (c *Cluster) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Cluster) logTransition(n transition) {
	attrs := []any{}
	if m := n.member; m != nil {
		attrs = append(attrs, "member", KeyOf(m).String(), "state", StateName(m.State), "incarnation", m.Incarnation)
	}
	if n.reason != DepartureNone {
		attrs = append(attrs, "reason", n.reason.String())
	}
	level := slog.LevelInfo
	switch n.kind {
	case transitionKept, transitionWentBack:
		level = slog.LevelWarn
	case transitionLease, transitionBack:
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, "membership: "+n.kind.String(), attrs...)
}
