package feed

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
)

// MaxSinks is the most event loops that one table can serve.
const MaxSinks = 128

// Table carries the channels of one edge for its event loops.
type Table struct {
	// immutable after New
	cfg     Config
	sinks   []Sink
	shards  []*shard
	metrics *metrics
}

// New makes a table; Run makes it live. Pulls may come before Run.
func New(cfg Config, bus Bus, asker Asker, sinks []Sink) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("channel table: %w", err)
	}
	if len(sinks) > MaxSinks {
		return nil, fmt.Errorf("channel table: %d sinks, at most %d are possible", len(sinks), MaxSinks)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	t := &Table{cfg: cfg, sinks: sinks, metrics: newMetrics(cfg.Registry)}
	for i := range cfg.ShardCount() {
		t.shards = append(t.shards, newShard(i, t, bus, asker))
	}
	registerQueues(cfg.Registry, t)
	return t, nil
}

// Run serves until ctx ends, then drops every interest and returns nil.
func (t *Table) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range t.shards {
		// Both end with ctx; Run waits for them.
		g.Go(func() error { return s.move(ctx) })
		g.Go(func() error { return s.run(ctx) })
	}
	return g.Wait()
}

// Channels is how many are carried now, lingering ones included. From any goroutine.
func (t *Table) Channels() int { return int(max(t.metrics.carried.Load(), 0)) }

// Pull registers the interest of p.Sink in p.Channel and asks for what p says.
// A Piece follows unless Cancel or Leave comes first.
func (t *Table) Pull(p Pull) {
	t.shard(p.Channel).inbox.post(command{kind: cmdPull, pull: p})
}

// Cancel says that nobody waits for the Piece of a Pull any more. One may still
// come that was under way. The sink's interest stays.
func (t *Table) Cancel(sink int, conn, sub uint64, channel string) {
	t.shard(channel).inbox.post(command{kind: cmdCancel, pull: Pull{Sink: sink, Conn: conn, Sub: sub, Channel: channel}})
}

// Leave says that the last subscriber of a sink has gone from a channel: its
// pulls there are forgotten, and so is the channel if no other sink has it, after
// Config.Linger.
func (t *Table) Leave(sink int, channel string) {
	t.shard(channel).inbox.post(command{kind: cmdLeave, pull: Pull{Sink: sink, Channel: channel}})
}

func (t *Table) shard(channel string) *shard {
	if len(t.shards) == 1 {
		return t.shards[0]
	}
	return t.shards[xxhash.Sum64String(channel)%uint64(len(t.shards))]
}
