package gateway

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// reloads spreads the reloads that a loss causes: each edge hands out its share of the
// cluster's rate, one client a slot.
type reloads struct {
	edge *Edge
	last atomic.Int64 // Unix nanoseconds of the last slot given out
}

// slot is in how many milliseconds a client that lost its position may reload.
func (r *reloads) slot() uint32 {
	edges := max(len(r.edge.members.Snapshot().Edges()), 1)
	step := int64(time.Second) * int64(edges) / int64(r.edge.settings().ReloadPerSecond)
	for {
		now, last := time.Now().UnixNano(), r.last.Load()
		slot := max(now, last+step)
		if r.last.CompareAndSwap(last, slot) {
			return uint32(min((slot-now)/int64(time.Millisecond), int64(10*time.Minute/time.Millisecond)))
		}
	}
}

func jitterMS(least, most time.Duration) uint32 {
	return uint32((least + rand.N(most-least)).Milliseconds())
}
