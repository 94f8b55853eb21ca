package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/proto/schema"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// TopicRevocations is where revocations are said on the bus.
	TopicRevocations = "revocations"
	// writeTime bounds one write of this package, repeats included.
	writeTime = 10 * time.Second
	// writeTries bounds the repeats of a write that others keep racing.
	writeTries = 8
	// maxHeardBytes bounds what is read of one word on the bus.
	maxHeardBytes = 16 << 10
)

var errBusy = errors.New("the record was changed by others again and again")

// Config of a Control. Zero fields mean their defaults.
type Config struct {
	// Keeper deletes what is over and ends operations that nobody ended; routers are.
	Keeper bool

	RotateKeys     time.Duration `default:"24h"`     // life of a key as the newest
	TicketLife     time.Duration `default:"1h"`      // longest life of a ticket
	TokenLife      time.Duration `default:"24h"`     // auth.max_ttl of an edge: how long revocations are kept
	MaxRevocations int           `default:"100,000"` // of single tokens; past it they are folded

	CheckSettings func(yaml string) error // what PutSettings asks; nil: everything passes
	Messenger     Messenger               // nil: revocations come by the key-value store alone

	Now      func() time.Time      // nil: time.Now
	Log      *slog.Logger          // nil: silent
	Registry prometheus.Registerer // nil: no metrics
}

// Control is one member's copy of what the cluster has agreed on, and its pen.
type Control struct {
	// immutable after New; revoked by OnRevocation before Run
	cfg     Config
	kv      KeyValue
	log     *slog.Logger
	metrics *metrics
	ready   chan struct{} // closed under mu
	poke    chan struct{} // capacity 1: there is something to do at once
	revoked func(*gatewayv1.Revocation)

	// lock-free reads; replaced under mu
	ring       atomic.Pointer[ring]
	operations atomic.Pointer[[]*gatewayv1.Operation]
	settings   atomic.Pointer[gatewayv1.Settings]
	bad        *revocations

	mu      sync.Mutex // guards below
	mirror  *mirror
	changed chan struct{} // closed at the next change
	untold  []*gatewayv1.Revocation
	telling bool // somebody is calling revoked
}

// New makes a Control; Run makes it live.
func New(cfg Config, kv KeyValue) *Control {
	schema.FillZero(&cfg)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Control{
		cfg: cfg, kv: kv, log: cfg.Log, metrics: newMetrics(cfg.Registry),
		ready: make(chan struct{}), poke: make(chan struct{}, 1), revoked: func(*gatewayv1.Revocation) {},
		bad: newRevocations(), changed: make(chan struct{}),
	}
	c.mirror = newMirror(c.bad)
	c.ring.Store(&ring{})
	c.operations.Store(&[]*gatewayv1.Operation{})
	c.settings.Store(&gatewayv1.Settings{})
	return c
}

// OnRevocation sets what is called for each revocation and disconnect that is new to
// this process, one after the other, when Revoked knows it already; before Run. It
// must not block.
func (c *Control) OnRevocation(revoked func(*gatewayv1.Revocation)) { c.revoked = revoked }

// Run follows the key-value store and the bus, makes keys, and tidies, until ctx ends.
func (c *Control) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	// Each ends with ctx, or ends it by failing; Run waits for them all.
	g.Go(func() error { return c.kv.Follow(ctx, c.take) })
	g.Go(func() error { return c.keep(ctx) })
	if c.cfg.Messenger != nil {
		g.Go(func() error { return c.cfg.Messenger.Listen(ctx, TopicRevocations, c.hear) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}

// Ready is closed once the key-value store was read: from then on what others have
// written is known.
func (c *Control) Ready() <-chan struct{} { return c.ready }

// Changed is closed at the next change of keys, operations or settings. Take it
// before reading: else a change can be missed.
func (c *Control) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Mint is the key that seals tickets now. false: there is none yet. The key is not to
// be changed.
func (c *Control) Mint(now time.Time) (id uint32, key []byte, ok bool) {
	k := c.ring.Load().mint(now)
	if k == nil {
		return 0, nil, false
	}
	return k.id, k.key, true
}

// Key is the one that a ticket names; not to be changed.
func (c *Control) Key(id uint32) ([]byte, bool) {
	k := c.ring.Load().find(id)
	if k == nil {
		return nil, false
	}
	return k.key, true
}

// Revoked says whether a token of user, or a ticket made from it, is bad. tokenID may
// be empty; a zero issuedAt counts as long ago.
func (c *Control) Revoked(user, tokenID string, issuedAt time.Time) bool {
	return c.bad.revoked(user, tokenID, issuedAt)
}

// Operations are those that run and those that ended in the last day, by start. The
// slice and what is in it are not to be changed.
func (c *Control) Operations() []*gatewayv1.Operation { return *c.operations.Load() }

// Operation is one of them, or nil.
func (c *Control) Operation(id string) *gatewayv1.Operation {
	for _, op := range c.Operations() {
		if op.Id == id {
			return op
		}
	}
	return nil
}

// PutOperation begins an operation; without id, start and state it gets them. A
// ConflictError: one that excludes it is running. To repeat it with the same id is
// harmless.
func (c *Control) PutOperation(ctx context.Context, op *gatewayv1.Operation) error {
	if op.Id == "" {
		op.Id = NewOperationID(c.cfg.Now())
	}
	if op.StartedMs == 0 {
		op.StartedMs = uint64(c.cfg.Now().UnixMilli())
	}
	if op.State == gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED {
		op.State = gatewayv1.OperationState_OPERATION_STATE_RUNNING
	}
	value, err := encode(op)
	if err != nil {
		return err
	}
	return c.retry(ctx, func(ctx context.Context) (bool, error) {
		records, revision, err := c.kv.List(ctx, FolderOperations+"/")
		if err != nil {
			return false, err
		}
		var all []*gatewayv1.Operation
		for _, r := range records {
			if other, ok := decode(r).(*gatewayv1.Operation); ok {
				if other.Id == op.Id {
					return true, nil
				}
				all = append(all, other)
			}
		}
		if with := conflict(all, op); with != nil {
			return false, &ConflictError{with}
		}
		return c.put(ctx, FolderOperations+"/"+op.Id, value, If{Quiet: revision})
	})
}

// UpdateOperation changes an operation. change may be called several times, each with
// a copy of its newest state; false from it: leave it as it is. What has ended
// cannot run again.
func (c *Control) UpdateOperation(ctx context.Context, id string, change func(*gatewayv1.Operation) bool) error {
	name := FolderOperations + "/" + id
	return c.retry(ctx, func(ctx context.Context) (bool, error) {
		found, _, err := c.look(ctx, name)
		if err != nil {
			return false, err
		}
		old, ok := decode(found).(*gatewayv1.Operation)
		if !ok {
			return false, ErrNoOperation
		}
		op := proto.CloneOf(old)
		if !change(op) || proto.Equal(op, old) {
			return true, nil
		}
		if !allowed(old, op) {
			return false, fmt.Errorf("operation %s has ended", id)
		}
		if Ended(op) && op.EndedMs == 0 {
			op.EndedMs = uint64(c.cfg.Now().UnixMilli())
		}
		value, err := encode(op)
		if err != nil {
			return false, err
		}
		return c.put(ctx, name, value, If{Revision: found.Revision})
	})
}

// PutRevocation puts a revocation or a disconnect in force. What is not set of id,
// times and close code it gets. It is told on the bus first: if the key-value store is
// away, who hears it obeys, but the error says that it was not kept.
func (c *Control) PutRevocation(ctx context.Context, r *gatewayv1.Revocation) error {
	r = proto.CloneOf(r)
	fill(r, c.cfg.Now(), c.cfg.TokenLife)
	if err := checkRevocation(r); err != nil {
		return &RevocationError{err}
	}
	c.mu.Lock()
	if c.bad.byID[r.Id] == nil && r.TokenId != "" && c.bad.many >= c.cfg.MaxRevocations {
		fold(r)
		c.metrics.folded.Inc()
	}
	c.mu.Unlock()
	c.broadcast(r)
	name := FolderRevocations + "/" + r.Id
	err := c.retry(ctx, func(ctx context.Context) (bool, error) {
		found, _, err := c.look(ctx, name)
		if err != nil {
			return false, err
		}
		if old, ok := decode(found).(*gatewayv1.Revocation); ok {
			merge(r, old)
		}
		value, err := encode(r)
		if err != nil {
			return false, err
		}
		return c.put(ctx, name, value, If{Revision: found.Revision})
	})
	if err != nil {
		return fmt.Errorf("told to members on the bus, but not kept: %w", err)
	}
	return nil
}

// RevocationError says what is wrong with a revocation that was offered.
type RevocationError struct{ Err error }

func (e *RevocationError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *RevocationError) Unwrap() error { return e.Err }

// broadcast tells a revocation to those who can be reached now.
func (c *Control) broadcast(r *gatewayv1.Revocation) {
	if c.cfg.Messenger == nil {
		return
	}
	data, err := proto.Marshal(r)
	if err == nil {
		err = c.cfg.Messenger.Broadcast(TopicRevocations, data)
	}
	if err != nil {
		c.log.Debug("could not broadcast a revocation", "err", err)
	}
}

// hear takes a revocation from the bus.
func (c *Control) hear(data []byte) {
	r := new(gatewayv1.Revocation)
	if len(data) > maxHeardBytes || proto.Unmarshal(data, r) != nil || r.Id == "" || checkRevocation(r) != nil {
		c.metrics.unreadable.Inc()
		return
	}
	c.metrics.heard.Inc()
	c.step(func(m *mirror, now time.Time) { m.revocation(r, now) })
}

// look reads one record; without one its Revision is 0.
func (c *Control) look(ctx context.Context, name string) (Record, int64, error) {
	records, revision, err := c.kv.List(ctx, name)
	if err != nil {
		return Record{}, 0, err
	}
	for _, r := range records {
		if r.Name == name {
			return r, revision, nil
		}
	}
	return Record{Name: name}, revision, nil
}

// put writes, and knows at once what it has written.
func (c *Control) put(ctx context.Context, name string, value []byte, cond If) (bool, error) {
	revision, done, err := c.kv.Put(ctx, name, value, cond)
	if err != nil {
		c.metrics.failures.Inc()
		return false, err
	}
	if done {
		c.step(func(m *mirror, now time.Time) { m.put(Record{Name: name, Value: value, Revision: revision}, now) })
	}
	return done, nil
}

// retry tries until it is done, has failed, or was raced too often.
func (c *Control) retry(ctx context.Context, try func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	for range writeTries {
		if done, err := try(ctx); done || err != nil {
			return err
		}
	}
	return errBusy
}

// take is what the key-value store calls.
func (c *Control) take(change Change) {
	c.step(func(m *mirror, now time.Time) { m.take(change, now) })
}

// step feeds the mirror, shows what has changed, and tells what is new.
func (c *Control) step(feed func(*mirror, time.Time)) {
	c.mu.Lock()
	c.untold = append(c.untold, c.stepLocked(feed)...)
	tell := !c.telling
	c.telling = true
	c.mu.Unlock()
	for tell {
		c.mu.Lock()
		news := c.untold
		c.untold = nil
		c.telling = len(news) > 0
		tell = c.telling
		c.mu.Unlock()
		for _, r := range news {
			c.revoked(r)
		}
	}
}

func (c *Control) stepLocked(feed func(*mirror, time.Time)) []*gatewayv1.Revocation {
	now := c.cfg.Now()
	feed(c.mirror, now)
	out := c.mirror.output()
	if out.keys {
		r := ringOf(c.mirror.keys, *c.ring.Load(), now)
		c.ring.Store(&r)
	}
	if out.operations {
		all := c.mirror.sorted()
		c.operations.Store(&all)
	}
	if out.settings {
		c.settings.Store(c.mirror.settings)
	}
	c.count(out)
	if out.keys || out.operations || out.settings {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	if out.listed {
		select {
		case <-c.ready:
		default:
			close(c.ready)
		}
	}
	if out.listed || out.dirty {
		select {
		case c.poke <- struct{}{}:
		default:
		}
	}
	return out.revoked
}

func (c *Control) count(out output) {
	c.metrics.keys.Set(float64(len(*c.ring.Load())))
	c.metrics.revocations.Set(float64(c.bad.count.Load()))
	running := 0
	for _, op := range c.Operations() {
		if !Ended(op) {
			running++
		}
	}
	c.metrics.operations.Set(float64(running))
	c.metrics.unreadable.Add(float64(out.unreadable))
	if out.listed {
		c.metrics.lists.Inc()
	}
	if out.wentBack {
		c.metrics.wentBack.Inc()
		c.log.Warn("the key-value store went back to an older state; what is known is written back")
	}
}

// newKey is made of the system's randomness.
func newKey(id uint32, now time.Time) *gatewayv1.TicketKey {
	key := make([]byte, KeyBytes)
	_, _ = rand.Read(key) // never fails, by its documentation
	return &gatewayv1.TicketKey{Id: id, Key: key, CreatedMs: uint64(now.UnixMilli())}
}
