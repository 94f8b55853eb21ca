// Package presence knows who is here: the nodes of the cluster, their state,
// their load, and which router owns a channel. (End users on a channel are the
// business of presence/roster, a later part.)
//
// Routers and edges call Cluster; it calls a Registry (presence/etcd) for the
// records under leases and a Board (presence/nats) for the load figures of each
// second. Snapshot is lock-free and never blocks; Run owns all goroutines.
//
// Invariant (I9): registry and bus may be away for as long as they like; no
// member, owner or epoch changes because of it. See view for the rules.
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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Change is news from the registry: a full listing, or one record put or gone.
type Change struct {
	List     []*Member // if Listed
	Listed   bool
	Put      *Member
	Deleted  *Key
	Revision int64
}

// Registry keeps records under leases.
type Registry interface {
	// Watch lists, then follows, until ctx ends. It survives any absence of the
	// registry, and lists again after compaction or a revision that went back.
	// changed is called from one goroutine.
	Watch(ctx context.Context, changed func(Change)) error
	// Register keeps self's record until ctx ends, then marks it left and gives
	// up its lease within two seconds. update wakes it to write self anew. It
	// calls registered after each first write under a new lease, lost when a lease
	// was lost even for a moment. A second live member with the same id ends it
	// with ErrDuplicate.
	Register(ctx context.Context, self func() *Member, update <-chan struct{}, registered, lost func()) error
}

// Board is where load figures are said and heard.
type Board interface {
	// Run says own() each second and calls heard for what others say, connected
	// when this node's connection comes or goes, until ctx ends.
	Run(ctx context.Context, own func() *Figure, heard func(*Figure), connected func(bool)) error
}

// ErrDuplicate says that a live member has our id.
var ErrDuplicate = errors.New("member id is already live")

// Config of a Cluster.
type Config struct {
	Self     *Member               // State and Incarnation are set by the Cluster
	Load     func(figure *Figure)  // fills in conns, subscriptions, channels; may be nil
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Cluster is one node's part in the cluster and its view of it.
type Cluster struct {
	// immutable after New
	cfg      Config
	registry Registry
	board    Board
	log      *slog.Logger
	metrics  *metrics
	joined   chan struct{}
	update   chan struct{} // capacity 1

	// atomic
	snapshot atomic.Pointer[Snapshot]
	losses   atomic.Uint64
	state    atomic.Int32
	seq      atomic.Uint64

	mu       sync.Mutex // guards all below
	view     *view
	changed  chan struct{} // closed at the next change
	isJoined bool
	listed   bool
}

// New makes a Cluster; Run makes it live.
func New(cfg Config, registry Registry, board Board) *Cluster {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	self := proto.CloneOf(cfg.Self)
	self.Incarnation = rand.Uint64() | 1
	self.StartedMs = uint64(time.Now().UnixMilli())
	cfg.Self = self
	c := &Cluster{
		cfg: cfg, registry: registry, board: board, log: cfg.Log,
		metrics: newMetrics(cfg.Registry),
		joined:  make(chan struct{}), update: make(chan struct{}, 1),
		view: newView(), changed: make(chan struct{}),
	}
	c.state.Store(int32(gatewayv1.State_STATE_SERVING))
	c.snapshot.Store(NewSnapshot(nil, 0))
	return c
}

// Run registers and watches until ctx ends; then the node has left.
func (c *Cluster) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	// Each part ends with ctx; Run waits for them all.
	g.Go(func() error { return c.registry.Watch(ctx, c.take) })
	g.Go(func() error { return c.registry.Register(ctx, c.self, c.update, c.registered, c.lost) })
	g.Go(func() error { return c.board.Run(ctx, c.figure, c.heard, c.connected) })
	g.Go(func() error { return c.tick(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("membership: %w", err)
	}
	return nil
}

// Snapshot is the present view.
func (c *Cluster) Snapshot() *Snapshot { return c.snapshot.Load() }

// Changed is closed at the next change of the view.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Joined is closed once this node is registered and has seen the others.
func (c *Cluster) Joined() <-chan struct{} { return c.joined }

// LeaseLosses counts the times this node's own lease was lost.
func (c *Cluster) LeaseLosses() uint64 { return c.losses.Load() }

// SetState says what this node is doing; it is written at once, or when the
// registry is back.
func (c *Cluster) SetState(s gatewayv1.State) {
	c.state.Store(int32(s))
	select {
	case c.update <- struct{}{}:
	default:
	}
}

// SetAddress is for nodes that learn theirs when they listen; before Run only.
func (c *Cluster) SetAddress(address string) { c.cfg.Self.Address = address }

// ID is this node's member id.
func (c *Cluster) ID() string { return c.cfg.Self.Id }

// LastHeard is when a member's last load figure came; zero: never.
func (c *Cluster) LastHeard(key Key) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.view.entries[key]; e != nil {
		return e.heard
	}
	return time.Time{}
}

// Figures returns the newest figure of each member that was heard.
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

func (c *Cluster) figure() *Figure {
	m := c.cfg.Self
	f := &Figure{
		Id: m.Id, Role: m.Role, Incarnation: m.Incarnation, Region: m.Region, Capacity: m.Capacity,
		Seq: c.seq.Add(1), State: gatewayv1.State(c.state.Load()),
	}
	if c.cfg.Load != nil {
		c.cfg.Load(f)
	}
	return f
}

func (c *Cluster) registered() {
	c.mu.Lock()
	c.isJoined = true
	c.closeJoinedLocked()
	c.mu.Unlock()
}

func (c *Cluster) lost() {
	c.losses.Add(1)
	c.metrics.leaseLosses.Inc()
	c.log.Warn("own lease was lost; registering anew")
	c.input(func(*view, time.Time) bool { return true }) // whoever trusts by lease looks again
}

func (c *Cluster) take(change Change) {
	c.input(func(v *view, now time.Time) bool {
		switch {
		case change.Listed:
			c.metrics.lists.Inc()
			c.listed = true
			c.closeJoinedLocked()
			return v.list(change.List, change.Revision, now)
		case change.Put != nil:
			return v.put(change.Put, change.Revision, now)
		case change.Deleted != nil:
			return v.delete(*change.Deleted, change.Revision, now)
		}
		return false
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
	c.input(func(v *view, now time.Time) bool {
		v.heardFrom(f, now)
		return false
	})
}

func (c *Cluster) connected(up bool) {
	c.input(func(v *view, now time.Time) bool {
		v.bus(up, now)
		return false
	})
}

func (c *Cluster) tick(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
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

// input feeds the view under mu and publishes a new snapshot if it changed.
func (c *Cluster) input(feed func(*view, time.Time) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.view.kept
	changed := feed(c.view, time.Now())
	if n := c.view.kept - kept; n > 0 {
		c.metrics.kept.Add(float64(n))
		c.log.Warn("the registry lost more than half of the members; keeping them until they are listed or silent", "kept", n)
	}
	if !changed {
		return
	}
	s := c.view.snapshot()
	c.snapshot.Store(s)
	c.metrics.members(s)
	close(c.changed)
	c.changed = make(chan struct{})
}
