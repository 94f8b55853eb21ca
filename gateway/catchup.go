package gateway

import (
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// catchup is what a conn counts for in the windows; owned by the loop.
type catchup struct {
	behind int32 // subscriptions of its connect frame without their backfill
	on     bool  // counted in Edge.catching
	told   bool  // it heard `reconnect`
	out    bool  // its end is counted
}

// beginCatchUp counts a client that said who it is: it has caught up when all
// subscriptions of its connect frame have queued their backfill and the queue is
// written. Conns that have not said who they are have nothing to catch up with.
func (c *conn) beginCatchUp(who identity) {
	e := c.loop.edge
	c.catchup.on = true
	e.catching.Add(1)
	for _, s := range c.subs {
		if s.state != subLive {
			s.catching = true
			c.catchup.behind++
		}
	}
	if who.resumed {
		e.series.cameFrom(who.edge)
	}
}

// caughtUp says that a subscription has its backfill, or is gone.
func (s *subscription) caughtUp() {
	if s.catching {
		s.catching = false
		s.c.catchup.behind--
	}
}

// drained is told when everything queued for c is written.
func (c *conn) drained() {
	if c.catchup.on && c.catchup.behind == 0 {
		c.catchup.on = false
		c.loop.edge.catching.Add(-1)
		c.loop.edge.series.add(countCaughtUp)
	}
}

// ended counts the end of a conn, once, with the reason of the metric.
func (c *conn) ended(reason string) {
	c.loop.edge.metrics.closes.WithLabelValues(reason).Inc()
	c.countOut(reason)
}

// countOut notes in the windows that a conn's client is gone: when the conn ends, or
// when another one of its session counts (it has been lost without a sign, unless it
// was told to move).
func (c *conn) countOut(reason string) {
	e := c.loop.edge
	if c.catchup.on {
		c.catchup.on = false
		e.catching.Add(-1)
	}
	if c.catchup.out {
		return
	}
	c.catchup.out = true
	if c.loop.handing != nil {
		c.loop.handing.leaves(c, reason)
	}
	switch {
	case reason == reasonShutdown:
		e.series.add(countShut)
	case c.catchup.told:
		e.series.add(countLeft)
	case reason == reasonClient, reason == reasonReset, reason == reasonPing, reason == reasonSuperseded:
		e.series.add(countLost)
	default:
		e.series.add(countClosed)
	}
}

// hasTold counts a client that was told to move, the first time.
func (c *conn) hasTold() {
	if !c.catchup.told && !c.catchup.out {
		c.catchup.told = true
		c.loop.edge.series.add(countTold)
	}
}

// loadSeries fills in the windows of a load figure.
func (e *Edge) loadSeries(f *presence.Figure) {
	f.CatchingUp = uint64(max(e.catching.Load(), 0))
	routers := make(map[string]uint64)
	for _, m := range e.members.Snapshot().Routers() {
		routers[m.Id] = m.Incarnation
	}
	heard := e.members.Figures()[presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: e.cfg.ID}]
	f.Windows = e.series.tell(f.Seq, heard.GetSeq(), routers, time.Now())
}
