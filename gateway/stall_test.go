package gateway

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/internal/sendq"
)

// An event for a conn that had none for half a minute stands in its queue when the
// sweep of the same turn comes by: that is no stall.
func TestAnEventAfterAQuietTimeIsNoStall(t *testing.T) {
	cfg := Default()
	l := &loop{edge: &Edge{cfg: cfg}, queues: sendq.NewPool(sendq.DefaultLimits(256 << 10))}
	long := uint32(cfg.WriteStall / time.Second)
	for _, x := range []struct {
		name     string
		queued   bool
		blocked  bool
		progress uint32
		want     bool
	}{
		{"queued in this turn after a quiet time", true, false, 0, false},
		{"blocked for as long", true, true, 0, true},
		{"blocked since a moment ago", true, true, long, false},
		{"blocked, and all was let go", false, true, 0, false},
	} {
		c := &conn{loop: l, out: l.queues.Queue(), blocked: x.blocked, progress: x.progress}
		if x.queued {
			c.out.Push([]byte("event"))
		}
		if got := c.stalled(long); got != x.want {
			t.Errorf("%s: stalled is %v", x.name, got)
		}
	}
}
