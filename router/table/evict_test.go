package table

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// alone is the membership of a router that has no company.
type alone struct{ snapshot *presence.Snapshot }

func (m *alone) Snapshot() *presence.Snapshot { return m.snapshot }
func (*alone) Changed() <-chan struct{}       { return nil }
func (*alone) Incarnation() uint64            { return 0 }
func (*alone) LeaseLosses() uint64            { return 0 }

// use touches a channel as a question or a publish does, and gives it a tail if it has none.
func (s *shard) use(name string, ns *namespace.Namespace, events []*gatewayv1.BusEvent) {
	s.clock()
	s.on(s.open(name, ns), func(e *entry) {
		e.Accept(&s.step, &channel.Handed{Meta: &gatewayv1.HandedChannel{Channel: name, Epoch: 1, Head: uint64(len(events)), Moves: 1}, Events: events})
	})
	s.shrink()
}

// A scan over a hundred thousand channels, 25 times what fits, each asked for twice as clients do that come back, lets
// go of none that are used all day; and what was used all day goes when others are.
func TestAScanEvictsNothingThatIsUsedOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, hot, scan, each = 8 << 20, 1_000, 100_000, 5
		members := &alone{presence.NewSnapshot([]*presence.Member{{Id: "r1", Role: gatewayv1.Role_ROLE_ROUTER, State: gatewayv1.State_STATE_SERVING}}, 1)}
		cache := New(Config{CacheBytes: limit, Shards: 1, Now: time.Now}, Deps{
			Views:  views.New(views.Config{Self: "r1", PauseLimit: time.Second}, members),
			Offers: func(string) { t.Error("a channel is offered to another router") },
		})
		shard, ns := cache.shards[0], &namespace.Namespace{Durability: namespace.None} // no goroutine owns it: the test does
		events := make([]*gatewayv1.BusEvent, each)
		for i := range events {
			events[i] = &gatewayv1.BusEvent{Offset: uint64(i + 1), TimeMs: 1, Data: make([]byte, 200)}
		}
		left := func(prefix string) (n int) {
			for i := range hot {
				if shard.channels[fmt.Sprint(prefix, i)] != nil {
					n++
				}
			}
			return n
		}
		day := func(prefix string) {
			for range 3 {
				for i := range hot {
					shard.use(fmt.Sprint(prefix, i), ns, events)
				}
				time.Sleep(oftenAfter) // of the bubble
			}
		}
		day("hot:")
		for i := range scan {
			name := fmt.Sprint("cold:", i)
			shard.use(name, ns, events)
			shard.use(name, ns, events)
			if i%(scan/100) == 0 {
				time.Sleep(100 * time.Millisecond) // of the bubble: 10 s in all
			}
		}
		if n := left("hot:"); n != hot {
			t.Errorf("%d of %d channels that are used often are left after the scan", n, hot)
		}
		if n := left("cold:99"); n == 0 {
			t.Error("the newest of the scan are not kept at all")
		}
		if cache.cached.Load() > limit {
			t.Errorf("%d bytes, %d are allowed", cache.cached.Load(), limit)
		}
		for _, prefix := range []string{"tuesday:", "wednesday:", "thursday:", "friday:"} {
			day(prefix)
			if n := left(prefix); n != hot {
				t.Errorf("%s %d of %d are left", prefix, n, hot)
			}
		}
		if n := left("hot:"); n != 0 {
			t.Errorf("%d channels of last monday are left", n)
		}
		var bytes, often int64
		for _, e := range shard.channels {
			bytes += e.bytes
			if e.often {
				often += e.bytes
			}
		}
		if bytes != shard.bytes || bytes != cache.cached.Load() || often != shard.ofOften {
			t.Errorf("%d bytes, %d of them used often, counted as %d, %d and %d", bytes, often, shard.bytes, cache.cached.Load(), shard.ofOften)
		}
		if n := cache.channels.Load(); n != int64(len(shard.channels)) {
			t.Errorf("%d channels, counted as %d", len(shard.channels), n)
		}
	})
}
