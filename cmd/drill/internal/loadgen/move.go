package loadgen

import (
	"encoding/binary"
	"time"

	"github.com/gobwas/ws"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

const (
	// leaveGrace is how long the server's half of a close is waited for.
	leaveGrace = 5 * time.Second
	moveBase   = 500 * time.Millisecond
	moveCap    = 5 * time.Second
)

// hinted obeys a `reconnect`: make before break, if the policy knows of it.
func (l *loop) hinted(k *conn, m *clientv1.Reconnect) {
	l.counts.Hints++
	k.hinted = true
	c := k.client
	if !l.obeys || c.cur != k || k.state != up {
		return
	}
	c.moving = hint{open: true, deadline: l.now + int64(m.DeadlineMs)*int64(time.Millisecond), url: m.Url, ticket: m.Ticket}
	if k.other().fd < 0 {
		l.timers.set(&c.timer, l.now+int64(m.AfterMs)*int64(time.Millisecond))
	}
}

// moveAgain repeats a move that failed, was refused or led nowhere: after the wait
// told, else with back-off, while its deadline allows.
func (l *loop) moveAgain(c *client, wait time.Duration) {
	if wait == 0 {
		wait = jitter(grown(moveBase, moveCap, c.moving.failures), l.rand)
	}
	c.moving.failures++
	at := l.now + int64(wait)
	if at >= c.moving.deadline {
		c.moving.open = false
		return
	}
	// The url was right once; the list is right as long as anybody lives.
	if c.moving.failures > 1 {
		c.moving.url = ""
	}
	l.timers.set(&c.timer, at)
}

// arrived is a second connection that was welcomed while the first one lives.
func (l *loop) arrived(k, old *conn) {
	c := k.client
	l.counts.Moved++
	c.moves = min(c.moves+1, maxMoves-1)
	c.moving.failures = 0
	if c.moving.open && k.node == old.node {
		l.counts.SameNode++
		l.moveAgain(c, 0)
	} else {
		c.moving.open = false
	}
	l.takeOver(c)
}

// taken says that all streams of the conn have reached what it was told at first.
func (k *conn) taken() bool {
	for i := range k.subs {
		if s, p := &k.subs[i], &k.client.subs[i]; !s.dead && (!s.live || p.epoch != s.epoch || p.offset < s.head) {
			return false
		}
	}
	return true
}

// takeOver closes the older of two connections once the newer has all of its channels.
func (l *loop) takeOver(c *client) {
	k := c.cur
	if k == nil || k.state != up || !k.taken() {
		return
	}
	if c.behind {
		c.behind = false
		l.counts.CaughtUp++
		l.caughtUp.add(l.now - c.since)
	}
	old := k.other()
	if old.state != up {
		return
	}
	old.state = leaving
	l.timers.set(&old.timer, l.now+int64(leaveGrace))
	var code [2]byte
	binary.BigEndian.PutUint16(code[:], 1000)
	l.sendRaw(old, ws.OpClose, code[:])
}
