package gateway

import "github.com/spillway-io/spillway/gateway/load"

// catchup is what a conn counts for in the windows; owned by the loop.
type catchup struct {
	behind int32 // subscriptions of its connect frame without their backfill
	on     bool  // counted in counts.catchingUp
	hinted bool  // it was sent `reconnect`
	out    bool  // its end is counted
}

// beginCatchUp counts a client that said who it is: it has caught up when all
// subscriptions of its connect frame have queued their backfill and the queue is
// written. Conns that have not said who they are have nothing to catch up with.
func (c *conn) beginCatchUp(who identity) {
	e := c.loop.edge
	c.catchup.on = true
	e.counts.catchingUp.Add(1)
	for _, s := range c.subs {
		if s.state != subLive {
			s.catchingUp = true
			c.catchup.behind++
		}
	}
	if who.resumed {
		e.series.CameFrom(who.edge)
	}
}

// caughtUp says that a subscription has its backfill, or is gone.
func (s *subscription) caughtUp() {
	if s.catchingUp {
		s.catchingUp = false
		s.c.catchup.behind--
	}
}

// drained is told when everything queued for c is written.
func (c *conn) drained() {
	if c.catchup.on && c.catchup.behind == 0 {
		c.catchup.on = false
		c.loop.edge.counts.catchingUp.Add(-1)
		c.loop.edge.series.Add(load.CaughtUp)
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
		e.counts.catchingUp.Add(-1)
	}
	if c.catchup.out {
		return
	}
	c.catchup.out = true
	c.loop.leaving.Left(leaves(c), leaveReason(reason))
	switch {
	case reason == reasonShutdown:
		e.series.Add(load.Shut)
	case c.catchup.hinted:
		e.series.Add(load.Left)
	case reason == reasonClient, reason == reasonReset, reason == reasonPing, reason == reasonSuperseded:
		e.series.Add(load.Lost)
	default:
		e.series.Add(load.Closed)
	}
}

// hinted counts a client that was told to move, the first time.
func (c *conn) hinted() {
	if !c.catchup.hinted && !c.catchup.out {
		c.catchup.hinted = true
		c.loop.edge.series.Add(load.Hinted)
	}
}
