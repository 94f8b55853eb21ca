package loadgen

import (
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// dueTimers serves every client and conn whose time has come.
func (l *loop) dueTimers() {
	for {
		due := l.timers.next()
		if due < 0 || due > l.now {
			return
		}
		t := l.timers[0]
		l.timers.clear(t)
		switch k := t.conn; {
		case k == nil:
			l.ready = append(l.ready, t.client)
		case k.state == up:
			l.beat(k)
		default:
			l.end(k, CauseTimeout)
		}
	}
}

// beat sends a ping, or looks whether anything came after the last one.
func (l *loop) beat(k *conn) {
	switch {
	case k.pinged == 0:
		k.pinged = l.now
		l.counts.Pings++
		l.timers.set(&k.timer, l.now+k.pong)
		l.send(k, ping)
	case k.lastRead >= k.pinged:
		next := k.pinged + k.interval
		k.pinged = 0
		l.timers.set(&k.timer, max(next, l.now))
	default:
		l.end(k, CausePing)
	}
}

var ping = &clientv1.ClientFrame{Id: 2, Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}}
