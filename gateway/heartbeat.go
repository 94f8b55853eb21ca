package gateway

import (
	"time"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// sweepInterval is the granularity of every timer of an idle conn: one walk over
// a flat array of last-seen times costs 0.5 ns a conn, a timer each would double
// the conn.
const sweepInterval = time.Second

// sweep looks at every conn once a second: heartbeats, deadlines, stalls, expiry.
func (l *loop) sweep() {
	now := l.seconds()
	interval := l.edge.settings().PingInterval
	quiet := ceilSeconds(interval*3/2 + time.Second - 1)
	dead := ceilSeconds(interval * 5 / 2)
	for slot, c := range l.slots {
		if c == nil {
			continue
		}
		silent := now - l.seen[slot]
		switch {
		case c.deadline != 0 && now >= c.deadline:
			c.deadlinePassed()
		case silent >= dead:
			c.timedOut()
		case silent >= quiet && !c.pinged:
			c.ping()
		case c.stalled(now):
			c.drop(reasonSlow)
		case c.session != nil && !c.closing && c.session.over(l.now):
			c.expired()
		}
	}
}

// touch notes that something was heard.
func (c *conn) touch() {
	c.loop.seen[uint32(c.token)] = c.loop.seconds()
	c.pinged = false
}

// ping asks a silent client whether it is there (protocol level).
func (c *conn) ping() {
	c.pinged = true
	c.push(wsframe.AppendFrame(nil, wsframe.Ping, nil))
}

// timedOut closes a conn that was silent for 2.5 ping intervals.
func (c *conn) timedOut() {
	if c.closing {
		c.drop(reasonPing)
		return
	}
	c.closeWith(wire.ClosePingTimeout, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "no frame in 2.5 ping intervals", reasonPing)
}

func ceilSeconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second)
}
