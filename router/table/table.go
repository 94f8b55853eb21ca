// Package table owns the channels that a router knows. Each shard is one goroutine that
// owns its part of the channels (package channel, pure) and everything that is counted or
// listed of them; everybody else sends it messages.
//
// router/api publishes, asks and reads pages; router/writer takes runs and brings them
// back; router/backfill is given reads and brings results; router/handover takes out and
// puts in channels; router/retention asks which channels are in use. The table calls the
// bus, and through the hooks of Deps the others. None of those calls may block.
//
// Life: New does nothing; Run owns one goroutine for each shard and one that tells them of
// new views, and ends with its context. Methods may be called from any goroutine. Those
// that wait for a shard (Take, Pack, Accept, Asked) end with the table.
//
// Invariants: a channel is in one shard and once in each of its lists; what waits is
// bounded in events and bytes, past the bound it is refused and counted (I7); memory is
// bounded: past Config.CacheBytes the least recently used channels that nothing waits for
// are let go whole.
//
// Left out on purpose: what becomes of one channel (package channel).
package table

import (
	"context"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// Config of a Table. All fields must be set; zero durations and numbers mean zero.
type Config struct {
	Channel       channel.Config
	QueueEvents   int64         // publications that wait; past it they are refused
	QueueBytes    int64         // the same in bytes
	CacheBytes    int64         // heads and tails of all channels together
	QuietAfter    time.Duration // when the head of a quiet channel is repeated
	RepeatsPerSec int           // heads repeated in a second at most
	Shards        int           // goroutines; 0: one for two cores, at most 16
	Now           func() time.Time
	Registry      prometheus.Registerer // nil: nothing is registered
}

// Bus carries envelopes to the edges, at most once. Publish never blocks and
// takes no ownership: the envelope and its events do not change afterwards.
type Bus interface {
	Publish(*gatewayv1.Envelope)
}

// Deps is what a table calls. No method may block.
type Deps struct {
	Bus    Bus
	Views  *views.Views
	Read   func(*channel.ReadQuery)                     // asks the store; Results brings the answer
	Pass   func(to string, pubs []*channel.Publication) // sends publications on to another router; Release follows
	Seek   func(name string)                            // asks the other routers for a channel; Accept or Nobody follows
	Offers func(to string)                              // channels wait to be handed over to a router: Pack gives them
	InUse  func(name string) bool                       // notes that the store is to be told of a use
}

// Table is all channels of a router.
type Table struct {
	// immutable after New
	cfg     Config
	deps    Deps
	seed    maphash.Seed
	shards  []*shard
	metrics *metrics
	wake    chan struct{} // capacity 1: a run may be taken
	ended   chan struct{} // closed when no shard answers any more

	// atomic
	events     atomic.Int64 // publications queued or in flight
	bytes      atomic.Int64
	quick      struct{ events, bytes atomic.Int64 } // of them, those that memory numbers
	cached     atomic.Int64                         // bytes of channels
	channels   atomic.Int64
	offered    atomic.Int64  // channels that wait to be handed over, or are on their way
	generation atomic.Uint64 // of epochs that memory numbers within one revision
	turn       atomic.Uint32 // the shard that Take begins with
}

// New makes a table without channels.
func New(cfg Config, deps Deps) *Table {
	if cfg.Shards == 0 {
		cfg.Shards = min(max(runtime.GOMAXPROCS(0)/2, 1), 16)
	}
	t := &Table{cfg: cfg, deps: deps, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	t.generation.Store(1)
	t.metrics = newMetrics(cfg.Registry, t)
	for range cfg.Shards {
		t.shards = append(t.shards, newShard(t))
	}
	return t
}

// Run serves until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	var shards, follower sync.WaitGroup
	for _, s := range t.shards {
		shards.Go(func() { s.run(ctx) }) // ends with ctx
	}
	follower.Go(func() { t.follow(ctx) }) // ends with ctx, at the latest when no shard answers
	shards.Wait()
	close(t.ended)
	follower.Wait()
	return nil
}

// follow has every shard look at each new view.
func (t *Table) follow(ctx context.Context) {
	for {
		changed := t.deps.Views.Changed()
		t.Viewed()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Viewed has every shard look at the view that is in force now, and returns when all have.
func (t *Table) Viewed() {
	for _, s := range t.shards {
		t.do(s, s.viewed)
	}
}

func (t *Table) shardOf(name string) *shard {
	if len(t.shards) == 1 {
		return t.shards[0]
	}
	return t.shards[maphash.String(t.seed, name)%uint64(len(t.shards))]
}

// Publish takes a publication, or finishes it as one too many.
func (t *Table) Publish(p *channel.Publication) {
	p.Since = time.Now()
	p.Measure()
	s := t.shardOf(p.Channel)
	if !t.reserve(p) {
		channel.Refuse((*effects)(s), p)
		return
	}
	s.post(command{kind: cmdPublish, pub: p})
}

// reserve takes a place in the queue. What memory numbers has a quarter beside, so
// that it goes on while all that waits for the store fills the queue.
func (t *Table) reserve(p *channel.Publication) bool {
	events, bytes := t.events.Add(1), t.bytes.Add(p.Size())
	ok := events <= t.cfg.QueueEvents && bytes <= t.cfg.QueueBytes
	if p.Namespace.Durability == namespace.None {
		events, bytes = t.quick.events.Add(1), t.quick.bytes.Add(p.Size())
		ok = ok || events <= max(1, t.cfg.QueueEvents/4) && bytes <= t.cfg.QueueBytes/4
	}
	return ok
}

// Release gives back the place of a publication that was passed on.
func (t *Table) Release(p *channel.Publication) {
	t.events.Add(-1)
	t.bytes.Add(-p.Size())
	if p.Namespace.Durability == namespace.None {
		t.quick.events.Add(-1)
		t.quick.bytes.Add(-p.Size())
	}
}

// Channels is how many channels are known.
func (t *Table) Channels() int64 { return t.channels.Load() }

// Ask answers a question of an edge.
func (t *Table) Ask(q *channel.Question) {
	t.shardOf(q.Ask.Channel).post(command{kind: cmdAsk, x: q})
}

// Page answers a question of a backend.
func (t *Table) Page(q *channel.PageQuery) {
	t.shardOf(q.Channel).post(command{kind: cmdPage, x: q})
}

// Results takes what the store has answered.
func (t *Table) Results(r *channel.ReadAnswer) {
	t.shardOf(r.Query.Key.Channel).post(command{kind: cmdRead, x: r})
}

// Wake is signalled when a run may be taken.
func (t *Table) Wake() <-chan struct{} { return t.wake }

// Take makes a batch of runs, of channels in the order in which they became ready, up to
// the bounds. It is empty when nothing is ready.
func (t *Table) Take(events int, bytes int64) []*channel.Run {
	var batch []*channel.Run
	first := int(t.turn.Add(1))
	for i := range t.shards {
		s := t.shards[(first+i)%len(t.shards)]
		if s.ready.Load() == 0 {
			continue
		}
		var runs []*channel.Run
		if !t.do(s, func() { runs = s.take(events, bytes) }) {
			return batch
		}
		batch = append(batch, runs...)
		for _, r := range runs {
			events -= len(r.Pubs)
			for _, p := range r.Pubs {
				bytes -= p.Size()
			}
		}
		if events <= 0 || bytes <= 0 {
			break
		}
	}
	return batch
}

// Written brings back every run of a batch.
func (t *Table) Written(batch []*channel.Run) {
	parts := make([][]*channel.Run, len(t.shards))
	at := make(map[*shard]int, len(t.shards))
	for i, s := range t.shards {
		at[s] = i
	}
	for _, r := range batch {
		i := at[t.shardOf(r.Channel)]
		parts[i] = append(parts[i], r)
	}
	for i, runs := range parts {
		if len(runs) > 0 {
			t.shards[i].post(command{kind: cmdWritten, x: runs})
		}
	}
}

// wait waits for a shard; false: the table has ended.
func (t *Table) wait(reply <-chan struct{}) bool {
	select {
	case <-reply:
		return true
	case <-t.ended:
		return false
	}
}

// do has a shard call f and waits for it; false: the table has ended.
func (t *Table) do(s *shard, f func()) bool {
	done := make(chan struct{})
	s.post(command{kind: cmdCall, x: func() { f(); close(done) }})
	return t.wait(done)
}

// split deals names to the shards that own them.
func (t *Table) split(names []string) map[*shard][]string {
	parts := make(map[*shard][]string, len(t.shards))
	for _, name := range names {
		s := t.shardOf(name)
		parts[s] = append(parts[s], name)
	}
	return parts
}

// those returns the channels that are known here and of which say is true.
func (t *Table) those(names []string, say func(*channel.Channel) bool) []string {
	var kept []string
	for s, part := range t.split(names) {
		t.do(s, func() {
			for _, name := range part {
				if e := s.channels[name]; e != nil && say(&e.Channel) {
					kept = append(kept, name)
				}
			}
		})
	}
	return kept
}

// WithEvents returns those of some channels of which the store has events, as far as
// memory knows.
func (t *Table) WithEvents(names []string) []string {
	now := t.cfg.Now()
	return t.those(names, func(c *channel.Channel) bool { return c.HasEvents(now) })
}
