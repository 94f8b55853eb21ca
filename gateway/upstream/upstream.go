package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// sweep is how often deadlines and the view are looked at.
const sweep = 100 * time.Millisecond

// Upstream is safe for concurrent use.
type Upstream struct {
	// immutable after New
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	lag lag // guards itself

	// atomic
	open atomic.Int64 // questions unanswered

	running sync.WaitGroup // goroutines of streams

	mu      sync.RWMutex       // guards all below; never held across a call
	ctx     context.Context    // of Run; nil: not running
	streams map[string]*stream // by router
}

var _ feed.Asker = (*Upstream)(nil)

// New makes an Upstream; Run makes it live.
func New(cfg Config) (*Upstream, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	u := &Upstream{cfg: cfg, log: cfg.Log, streams: make(map[string]*stream)}
	u.metrics = newMetrics(cfg.Registry, func() float64 { return float64(u.open.Load()) })
	return u, nil
}

// Run keeps streams until ctx ends; then every question is answered and all
// streams are closed.
func (u *Upstream) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	u.mu.Lock()
	u.ctx = ctx
	u.mu.Unlock()
	ticker := time.NewTicker(sweep)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			u.sweep(time.Now())
		}
	}
	u.mu.Lock()
	u.ctx = nil // no more streams
	u.mu.Unlock()
	cancel()
	u.running.Wait()
	return nil
}

// sweep answers what is late and ends the streams of routers that are gone.
func (u *Upstream) sweep(now time.Time) {
	snapshot := u.cfg.View.Snapshot()
	u.mu.Lock()
	streams := make([]*stream, 0, len(u.streams))
	for id, s := range u.streams {
		if m := snapshot.Member(presence.KeyOf(s.member)); m == nil || !same(m, s.member) {
			s.cancel()
			delete(u.streams, id)
			continue
		}
		streams = append(streams, s)
	}
	u.mu.Unlock()
	for _, s := range streams {
		s.expire(now)
	}
}

// same says that two records are of one life of a router.
func same(a, b *presence.Member) bool {
	return a.Address == b.Address && a.Incarnation == b.Incarnation
}

// Ask implements feed.Asker.
func (u *Upstream) Ask(a *gatewayv1.Ask, to feed.Answerer) {
	p := &pending{ask: a, to: to, id: a.Id, at: time.Now()}
	if u.open.Load() >= int64(u.cfg.MaxAsks) {
		u.metrics.answers[outcomeFull].Inc()
		p.unavailable("too many questions to the routers")
		return
	}
	a.DeadlineMs = uint32((u.cfg.AskDeadline - u.cfg.AskDeadline/10).Milliseconds())
	snapshot := u.cfg.View.Snapshot()
	owner := snapshot.Owner(a.Channel)
	if owner != nil && u.put(owner, p) {
		return
	}
	for _, m := range snapshot.Ranked(a.Channel) {
		if m != owner && u.put(m, p) {
			u.metrics.fallbacks.Inc()
			return
		}
	}
	u.metrics.answers[outcomeNoRouter].Inc()
	p.unavailable("no router can be reached")
}

// put queues a question on the stream of a router, unless that is down.
func (u *Upstream) put(m *presence.Member, p *pending) bool {
	s := u.stream(m)
	return s != nil && s.put(p)
}

// stream finds or makes the stream of a router; nil: not running.
func (u *Upstream) stream(m *presence.Member) *stream {
	u.mu.RLock()
	s := u.streams[m.Id]
	running := u.ctx != nil
	u.mu.RUnlock()
	if !running {
		return nil
	}
	if s != nil && same(s.member, m) {
		return s
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx == nil {
		return nil
	}
	if s = u.streams[m.Id]; s != nil {
		if same(s.member, m) {
			return s
		}
		s.cancel() // an earlier life
	}
	ctx, cancel := context.WithCancel(u.ctx)
	s = newStream(u, m, cancel)
	u.streams[m.Id] = s
	// It ends when the router leaves the view or Run ends; Run waits for it.
	u.running.Go(func() { s.run(ctx) })
	return s
}
