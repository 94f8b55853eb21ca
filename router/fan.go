package router

import (
	"context"
	"sync"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Bus carries envelopes to the edges, at most once. Publish never blocks and
// takes no ownership: the envelope and its events do not change afterwards.
type Bus interface {
	Publish(*gatewayv1.Envelope)
}

// fan puts events on the bus, and once a channel has been quiet for QuietAfter its
// head again: an edge that lost the newest event learns of it from that.
//
// The list of channels to repeat is bounded by the table (a channel is in it
// once); what the table lets go is passed over when its turn comes. Lock order: a shard's mu, then fan.mu.
type fan struct {
	cfg     *Config
	bus     Bus
	metrics *metrics

	mu    sync.Mutex // guards below
	quiet []quietEntry
	first int // of quiet: those before it are gone
}

// quietSpare is how many entries an empty list keeps room for.
const quietSpare = 64 << 10

type quietEntry struct {
	ch  *channel
	due time.Time
}

// out sends events that follow each other.
func (f *fan) out(channel string, epoch, base uint64, events []*gatewayv1.BusEvent) {
	f.bus.Publish(&gatewayv1.Envelope{
		Channel: channel, Epoch: epoch, Head: events[len(events)-1].Offset, Events: events, Router: f.cfg.ID, Base: base,
	})
	f.metrics.fanned.Add(float64(len(events)))
}

// publishedLocked puts a channel on the list of those to repeat; its shard is locked.
func (f *fan) publishedLocked(ch *channel) {
	ch.lastPublish = time.Now()
	if ch.quietQueued {
		return
	}
	ch.quietQueued = true
	f.later(ch, ch.lastPublish)
}

// later lists a channel. All wait equally long, so that the list is in order.
func (f *fan) later(ch *channel, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.quiet) == cap(f.quiet) && f.first > len(f.quiet)/2 {
		n := copy(f.quiet, f.quiet[f.first:])
		clear(f.quiet[n:])
		f.quiet, f.first = f.quiet[:n], 0
	}
	f.quiet = append(f.quiet, quietEntry{ch, now.Add(f.cfg.QuietAfter / 2)})
}

func (f *fan) due(now time.Time) *channel {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == len(f.quiet) || f.quiet[f.first].due.After(now) {
		return nil
	}
	ch := f.quiet[f.first].ch
	f.quiet[f.first] = quietEntry{}
	if f.first++; f.first == len(f.quiet) {
		f.quiet, f.first = f.quiet[:0], 0
		if cap(f.quiet) > quietSpare {
			f.quiet = nil // after a rush
		}
	}
	return ch
}

// run repeats heads, paced, until ctx ends.
func (f *fan) run(ctx context.Context) error {
	const ticks = 10 // a second
	ticker := time.NewTicker(time.Second / ticks)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			budget := max(1, f.cfg.RepeatsPerSec/ticks)
			for budget > 0 {
				ch := f.due(now)
				if ch == nil {
					break
				}
				if f.repeat(ch, now) {
					budget--
				}
			}
		}
	}
}

func (f *fan) repeat(ch *channel, now time.Time) bool {
	ch.shard.mu.Lock()
	if now.Sub(ch.lastPublish) < f.cfg.QuietAfter {
		ch.shard.mu.Unlock()
		f.later(ch, now)
		return false
	}
	ch.quietQueued = false
	known, epoch, head, base := ch.known, ch.epoch, ch.head, ch.baseLocked(ch.epoch, ch.head)
	ch.shard.mu.Unlock()
	if !known {
		return false // another has the channel: the repeating is its business
	}
	f.bus.Publish(&gatewayv1.Envelope{Channel: ch.name, Epoch: epoch, Head: head, Router: f.cfg.ID, Base: base})
	f.metrics.headsRepeated.Inc()
	return true
}
