package client

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	defaultPingInterval = 30 * time.Second
	defaultPongTimeout  = 10 * time.Second
	// A timer that is later than this was held up by a suspended machine or a
	// starved process, as the answer may have been.
	lateTimer = 2 * time.Second
)

// heartbeat finds out that a connection is dead although nobody said so.
func (m *machine) heartbeat(now time.Time, paused bool) {
	l := m.link
	if !l.pongBy.IsZero() && !now.Before(l.pongBy) {
		if !paused && now.Sub(l.pongBy) <= lateTimer {
			m.do(dropLink{l.n, wire.ClosePingTimeout})
			m.ended(now, loss{own: true, err: errPongTime})
			return
		}
		m.ping(now)
		return
	}
	if !now.Before(l.nextPing) {
		m.ping(now)
	}
}

func (m *machine) ping(now time.Time) {
	l := m.link
	l.pongBy = now.Add(l.pongTimeout)
	l.nextPing = now.Add(l.pingInterval)
	m.command(&command{kind: cmdPing}, &clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}})
}

// alive: something came.
func (m *machine) alive(n int) {
	if m.link != nil && m.link.n == n {
		m.link.pongBy = time.Time{}
	}
}
