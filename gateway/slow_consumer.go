package gateway

import (
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/internal/sendq"
)

// A client that reads too slowly costs only itself. When its queue is full, the queued
// events are let go and their subscriptions fall behind; when the queue has drained they
// are served from history, one after the other. Without history the client hears of a gap.
// A client that asks on without reading answers is read no more until they are written,
// and one to which nothing could be written for long is dropped.

// overflow lets go of all queued events, and of the one at offset of s.
func (c *conn) overflow(s *subscription, offset uint64) {
	lost := map[uint64][2]uint64{s.id: {offset, offset}} // first and last by subscription
	n := c.out.DropEvents(func(tag sendq.Tag) {
		span, ok := lost[tag.Owner]
		if !ok {
			span = [2]uint64{tag.Offset, tag.Offset}
		}
		lost[tag.Owner] = [2]uint64{min(span[0], tag.Offset), max(span[1], tag.Offset)}
	})
	c.loop.edge.metrics.overflows.Inc()
	c.loop.edge.metrics.dropped.Add(float64(n + 1))
	for _, sub := range c.subs {
		span, ok := lost[sub.id]
		switch {
		case !ok:
		case sub.history:
			sub.pos = span[0] - 1
			sub.fallBehind()
		default:
			sub.gap(sub.epoch, span[1], "slow_consumer")
		}
	}
}

// fallBehind stops live delivery to s: when the conn's queue has drained it is
// served from pos.
func (s *subscription) fallBehind() {
	if s.state == subBehind || s.state == subWaiting {
		return
	}
	s.set(subBehind)
	s.c.loop.edge.metrics.lagging.Inc()
	if s.req == nil {
		s.c.catchUp()
	}
}

// catchUp asks the table for one subscription that is behind, once the queue
// has drained: each piece may fill half of it.
func (c *conn) catchUp() {
	if c.behind == 0 || c.pulling || c.closing || c.closed || c.out.Len() > 0 {
		return
	}
	for _, s := range c.subs {
		if s.state == subBehind && s.req == nil {
			s.set(subPulling)
			c.pulling = true
			c.loop.edge.table.Pull(feed.Pull{
				Sink: c.loop.id, Conn: c.token, Sub: s.id, Channel: s.channel.name,
				HasPosition: true, Epoch: s.epoch, Offset: s.pos,
				MaxBytes: c.loop.edge.cfg.SendQueueBytes / 2,
			})
			return
		}
	}
}

// pace stops reading a client that asks on without reading its answers, until they
// are written.
func (c *conn) pace() {
	if full := c.out.Bytes() > c.loop.edge.cfg.SendQueueBytes; full != c.paused && !c.closed && !c.finished {
		c.paused = full
		if err := c.loop.poller.SetRead(c.sock, !full); err != nil {
			c.drop(reasonReset)
		}
	}
}

// stalled says that there was something to write and nothing could be, for long. What
// was queued in this turn, after a quiet time, was not tried yet.
func (c *conn) stalled(now uint32) bool {
	return c.blocked && c.out.Len() > 0 && now-c.progress >= ceilSeconds(c.loop.edge.cfg.WriteStall)
}
