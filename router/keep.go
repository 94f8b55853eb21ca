package router

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

const (
	keepBatch = 1_000       // channels of one call
	keepPace  = time.Second // between two calls
	keepRest  = time.Minute // after a call that failed
	keepQueue = 100_000     // channels that wait; past it they are noted when they are asked for again
	keepParts = 12          // of ForgetAfter: how often a channel that is asked for is noted
)

// keeper tells the store which channels are in use though nothing is published on
// them: edges ask for each channel that they carry twice a minute, and without a
// row its next event would begin a new epoch, which tells all its readers that
// they may have missed something. Only channels without events are told; of
// the others the row stays anyway.
//
// usedLocked is called with a shard locked; run is its one goroutine.
type keeper struct {
	// immutable after newKeeper
	every   time.Duration // 0: nothing is noted
	now     func() time.Time
	table   *table
	store   history.Store
	metrics *metrics
	log     *slog.Logger

	mu  sync.Mutex // guards below
	due []string
}

func newKeeper(cfg *Config, t *table, store history.Store, m *metrics, log *slog.Logger) *keeper {
	return &keeper{every: cfg.ForgetAfter / keepParts, now: cfg.Now, table: t, store: store, metrics: m, log: log}
}

// usedLocked takes note that somebody asks for a channel, just now (ch.used).
func (k *keeper) usedLocked(ch *channel) {
	if k.every == 0 || ch.ns.Durability == namespace.None || !ch.kept.IsZero() && ch.used.Sub(ch.kept) < k.every {
		return
	}
	if ch.hasEventsLocked(k.now()) || k.add(ch.name) {
		ch.kept = ch.used
	}
}

// hasEventsLocked says that the store has events of the channel, as far as memory
// knows; false: it may have.
func (ch *channel) hasEventsLocked(now time.Time) bool {
	n := len(ch.tail.events)
	return n > 0 && (ch.ns.HistoryTTL == 0 || int64(ch.tail.events[n-1].TimeMs) > now.Add(-ch.ns.HistoryTTL).UnixMilli())
}

func (k *keeper) add(channel string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.due) >= keepQueue {
		return false
	}
	k.due = append(k.due, channel)
	return true
}

// take returns channels that have waited, without those whose events have come to
// light meanwhile.
func (k *keeper) take() []string {
	k.mu.Lock()
	n := min(keepBatch, len(k.due))
	some := append([]string(nil), k.due[:n]...)
	k.due = k.due[n:]
	if len(k.due) == 0 {
		k.due = nil
	}
	k.mu.Unlock()
	now := k.now()
	kept := some[:0]
	seen := make(map[string]bool, len(some))
	for _, name := range some {
		s := k.table.lock(name)
		ch := s.channels[name]
		skip := seen[name] || ch != nil && ch.hasEventsLocked(now)
		s.mu.Unlock()
		if !skip {
			seen[name] = true
			kept = append(kept, name)
		}
	}
	return kept
}

// run tells the store, until ctx ends. A call that fails is made again: those
// channels are not noted a second time for long.
func (k *keeper) run(ctx context.Context, timeout time.Duration) error {
	var channels []string
	failed := false
	for wait := keepPace; pause(ctx, wait); {
		if len(channels) == 0 {
			channels = k.take()
		}
		wait = keepPace
		if len(channels) == 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, timeout)
		k.metrics.storeCalls.keep.Inc()
		err := k.store.Keep(call, channels)
		cancel()
		switch {
		case err == nil:
			channels, failed = nil, false
		case ctx.Err() == nil:
			wait = keepRest
			if !failed {
				k.log.Warn("the store cannot be told which channels are in use; trying again", "error", err)
			}
			failed = true
		}
	}
	return nil
}
