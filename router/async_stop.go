package router

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

// tellMost is of how many channels, and of how many namespaces, a router that ends says
// what is lost.
const tellMost = 100

// written waits until all is written, or ctx ends: the last effort of a router that stops.
func (s *sequencer) written(ctx context.Context) {
	for s.behind.queued.Load() > 0 && pause(ctx, 5*time.Millisecond) {
	}
}

// loss is what of a channel the store does not have: offsets of an epoch, both included.
type loss struct {
	channel            string
	epoch, first, last uint64
}

// tellLost counts and logs what a router that ends has of events that the store does not
// have. Nobody else has them; whoever takes the channels over begins new epochs.
func (s *sequencer) tellLost() {
	losses := s.losses()
	channels, events := make(map[string]int), make(map[string]uint64)
	for i, l := range losses {
		ns := wire.Namespace(l.channel)
		if ns == "" {
			ns = bareNamespace
		}
		channels[ns]++
		events[ns] += l.last - l.first + 1
		if i < tellMost {
			s.log.Warn("the router ended before the store took events that were acked: they are lost",
				"channel", l.channel, "epoch", l.epoch, "first", l.first, "last", l.last)
		}
	}
	for i, ns := range slices.Sorted(maps.Keys(events)) {
		s.metrics.asyncLost.Add(float64(events[ns]))
		if i < tellMost {
			s.log.Error("acked events of a namespace are lost", "namespace", ns, "channels", channels[ns], "events", events[ns])
		}
	}
}

func (s *sequencer) losses() (all []loss) {
	for i := range s.table.shards {
		shard := &s.table.shards[i]
		shard.mu.Lock()
		for _, ch := range shard.channels {
			if n := ch.unlostLocked(); n > 0 {
				all = append(all, loss{ch.name, ch.epoch, ch.head - n + 1, ch.head})
			}
		}
		shard.mu.Unlock()
	}
	return all
}
