package machine

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

const (
	defaultPingInterval = 30 * time.Second
	defaultPongTimeout  = 10 * time.Second
	// A timer that is later than this was held up by a suspended machine or a
	// starved process, as the answer may have been.
	lateTimer = 2 * time.Second
)

// heartbeat finds out that a connection is dead although nobody said so.
func (m *Machine) heartbeat(now time.Time, l *link, paused bool) {
	if !l.pongBy.IsZero() && !now.Before(l.pongBy) {
		if !paused && now.Sub(l.pongBy) <= lateTimer {
			m.drop(now, l, loss{own: true, err: errPongTime})
			return
		}
		m.ping(now, l, l.pongTimeout)
		return
	}
	if !now.Before(l.nextPing) {
		m.ping(now, l, l.pongTimeout)
	}
}

// ping wants an answer within limit.
func (m *Machine) ping(now time.Time, l *link, limit time.Duration) {
	l.pongBy = now.Add(limit)
	l.nextPing = now.Add(l.pingInterval)
	m.command(l, &command{kind: cmdPing}, &clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}})
}

// Alive: something came.
func (m *Machine) Alive(n int) {
	if l := m.find(n); l != nil {
		l.pongBy = time.Time{}
	}
}
