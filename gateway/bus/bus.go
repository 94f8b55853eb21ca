// Package bus brings the channels that an edge carries from NATS: feed.Bus over
// one connection, a subscription for each channel.
//
// Package feed calls it: Interest, Renew and Drop from its shards' goroutines,
// Receive from one goroutine a shard. It owns no goroutine; the connection is the
// caller's, and must never give up reconnecting. Subscriptions are made with
// ChanSubscribe onto one Go chan for each shard: no goroutine and 0.3 KB a
// channel, where a callback costs 3 KB.
//
// Invariant: a channel has one subscription at most, two while it is renewed;
// feed drops what comes twice.
//
// Limits: a shard's queue is bounded in messages (Config.Queue), a message by the
// server's payload limit; what comes while it is full is dropped by nats.go and
// counted, and Disruptions makes feed look for it. Feed takes from it without ever
// waiting and bounds in bytes what it has not worked off, so this queue is for
// the moments in which that goroutine does not run. Nothing here waits for the
// server: an interest is on its way when Interest returns, not in force.
package bus

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/proto/schema"
	"github.com/spillway-io/spillway/proto/wire"
)

// Config of a Bus.
type Config struct {
	Prefix   string                `rule:"not empty"`               // of all subjects
	Shards   int                   `rule:"above 0"`                 // of the feed.Table
	Queue    int                   `default:"8,192" rule:"above 0"` // messages that may wait for one shard
	Registry prometheus.Registerer // nil: no metrics
}

// Default works but for Prefix and Shards.
func Default() Config { return schema.Default[Config]() }

// Validate reports all problems at once.
func (c Config) Validate() error { return schema.Validate(&c) }

// Bus implements feed.Bus.
type Bus struct {
	// immutable after New
	cfg     Config
	conn    *nats.Conn
	shards  []*shard
	metrics *metrics
}

var _ feed.Bus = (*Bus)(nil)

// shard is the part of one shard of the table.
type shard struct {
	queue chan *nats.Msg
	full  atomic.Uint64 // times that the queue was found full

	mu      sync.Mutex // guards all below; never held across a call to nats.go
	subs    map[string]*nats.Subscription
	dropped uint64 // of subscriptions that are gone
}

// New makes a bus on a connection.
func New(cfg Config, conn *nats.Conn) (*Bus, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	b := &Bus{cfg: cfg, conn: conn}
	for range cfg.Shards {
		b.shards = append(b.shards, &shard{
			queue: make(chan *nats.Msg, cfg.Queue),
			subs:  make(map[string]*nats.Subscription),
		})
	}
	b.metrics = newMetrics(cfg.Registry, b.dropped)
	return b, nil
}

// Interest implements feed.Bus.
func (b *Bus) Interest(channel string, shard int) error {
	s := b.shards[shard]
	s.mu.Lock()
	_, have := s.subs[channel]
	s.mu.Unlock()
	if have {
		return nil
	}
	return b.subscribe(s, channel)
}

// Renew implements feed.Bus: the new subscription is made before the old one
// ends.
func (b *Bus) Renew(channel string, shard int) error {
	return b.subscribe(b.shards[shard], channel)
}

func (b *Bus) subscribe(s *shard, channel string) error {
	sub, err := b.conn.ChanSubscribe(wire.Subject(b.cfg.Prefix, channel), s.queue)
	if err != nil {
		return fmt.Errorf("subscribe to channel: %w", err)
	}
	s.mu.Lock()
	old := s.subs[channel]
	s.subs[channel] = sub
	s.mu.Unlock()
	if old == nil {
		b.metrics.interests.Inc()
		return nil
	}
	s.end(old)
	return nil
}

// Drop implements feed.Bus.
func (b *Bus) Drop(channel string, shard int) {
	s := b.shards[shard]
	s.mu.Lock()
	sub := s.subs[channel]
	delete(s.subs, channel)
	s.mu.Unlock()
	if sub != nil {
		b.metrics.interests.Dec()
		s.end(sub)
	}
}

// end takes a subscription back; on a closed connection there is nothing to take.
func (s *shard) end(sub *nats.Subscription) {
	n, _ := sub.Dropped()
	_ = sub.Unsubscribe()
	if n > 0 {
		s.mu.Lock()
		s.dropped += uint64(n)
		s.mu.Unlock()
	}
}

// Receive implements feed.Bus.
func (b *Bus) Receive(ctx context.Context, shard int, into [][]byte) ([][]byte, error) {
	s := b.shards[shard]
	select {
	case <-ctx.Done():
		return into, ctx.Err()
	case m := <-s.queue:
		if len(s.queue) >= cap(s.queue)-1 {
			s.full.Add(1) // only we take from it: whoever found it full dropped
			b.metrics.overflows.Inc()
		}
		into = append(into, m.Data)
	}
	for len(into) < cap(into) {
		select {
		case m := <-s.queue:
			into = append(into, m.Data)
		default:
			b.metrics.messages.Add(float64(len(into)))
			return into, nil
		}
	}
	b.metrics.messages.Add(float64(len(into)))
	return into, nil
}

// Disruptions implements feed.Bus.
func (b *Bus) Disruptions(shard int) uint64 {
	return b.conn.Stats().Reconnects + b.shards[shard].full.Load()
}

// dropped is how many messages found a full queue.
func (b *Bus) dropped() float64 {
	var sum uint64
	for _, s := range b.shards {
		s.mu.Lock()
		subs := make([]*nats.Subscription, 0, len(s.subs))
		for _, sub := range s.subs {
			subs = append(subs, sub)
		}
		sum += s.dropped
		s.mu.Unlock()
		for _, sub := range subs {
			if n, err := sub.Dropped(); err == nil {
				sum += uint64(n)
			}
		}
	}
	return float64(sum)
}
