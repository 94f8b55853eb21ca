package router

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/namespace"
)

// use touches a channel as a question or a publish does, and gives it a tail if it has none.
func (t *table) use(name string, ns *namespace.Namespace, events []*gatewayv1.BusEvent) {
	s := t.lock(name)
	ch := t.getLocked(s, name, ns)
	if !ch.known {
		t.moveLocked(ch, 1, 0)
		t.grewLocked(ch, events, tailBounds{})
	}
	s.mu.Unlock()
	t.shrink()
}

func (t *table) has(name string) bool {
	s := t.lock(name)
	defer s.mu.Unlock()
	return s.channels[name] != nil
}

// A scan over a hundred thousand channels, 25 times what fits, each asked for twice as clients do that come back, lets
// go of none that are used all day; and what was used all day goes when others are.
func TestAScanEvictsNothingThatIsUsedOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, hot, scan, each = 8 << 20, 1_000, 100_000, 5
		cache, ns := newTable(limit, newMetrics(nil, &sizes{})), &namespace.Namespace{}
		events := make([]*gatewayv1.BusEvent, each)
		for i := range events {
			events[i] = &gatewayv1.BusEvent{Offset: uint64(i + 1), TimeMs: 1, Data: make([]byte, 200)}
		}
		left := func(prefix string) (n int) {
			for i := range hot {
				if cache.has(fmt.Sprint(prefix, i)) {
					n++
				}
			}
			return n
		}
		day := func(prefix string) {
			for range 3 {
				for i := range hot {
					cache.use(fmt.Sprint(prefix, i), ns, events)
				}
				time.Sleep(oftenAfter) // of the bubble
			}
		}
		day("hot:")
		for i := range scan {
			name := fmt.Sprint("cold:", i)
			cache.use(name, ns, events)
			cache.use(name, ns, events)
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
		if cache.bytes.Load() > limit {
			t.Errorf("%d bytes, %d are allowed", cache.bytes.Load(), limit)
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
		for i := range cache.shards {
			for _, ch := range cache.shards[i].channels {
				bytes += ch.bytes
				if ch.often {
					often += ch.bytes
				}
			}
		}
		if bytes != cache.bytes.Load() || often != cache.often.Load() {
			t.Errorf("%d bytes, %d of them used often, counted as %d and %d", bytes, often, cache.bytes.Load(), cache.often.Load())
		}
	})
}
