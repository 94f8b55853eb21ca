package loadgen

import (
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// dueTimers serves every conn whose time has come.
func (l *loop) dueTimers() {
	for {
		due := l.timers.next()
		if due < 0 || due > l.now {
			return
		}
		c := l.timers[0]
		l.timers.clear(c)
		switch c.state {
		case away:
			l.ready = append(l.ready, c)
		case up:
			l.beat(c)
		default:
			l.end(c, CauseTimeout)
		}
	}
}

// beat sends a ping, or looks whether anything came after the last one.
func (l *loop) beat(c *conn) {
	switch {
	case c.pinged == 0:
		c.pinged = l.now
		l.counts.Pings++
		l.timers.set(c, l.now+c.pong)
		l.send(c, ping)
	case c.lastRead >= c.pinged:
		next := c.pinged + c.interval
		c.pinged = 0
		l.timers.set(c, max(next, l.now))
	default:
		l.end(c, CausePing)
	}
}

var ping = &clientv1.ClientFrame{Id: 2, Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}}
