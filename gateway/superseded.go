package gateway

import (
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	supersededTime  = 30 // seconds that a left conn is given
	supersededShare = 8  // of MaxConns, for conns that this edge itself replaced
)

// supersede leaves a conn to its client: it counts no more against capacity and
// limits, and delivers on until the client closes it. here: for a conn of this
// edge, which then has a socket more than it counts; of these only so many live on.
func (l *loop) supersede(c *conn, here bool) {
	if c.superseded || c.closed {
		return
	}
	l.uncount(c)
	e := l.edge
	c.superseded = true
	c.countOut(reasonSuperseded)
	n := e.counts.supersede()
	if c.deadline == 0 {
		c.deadline = l.seconds() + supersededTime
	}
	if here && n > int64(max(e.settings().MaxConns/supersededShare, 1)) {
		c.closeSuperseded()
	}
}

func (c *conn) closeSuperseded() {
	c.closeWith(wire.CloseSuperseded, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "this session goes on over another connection", reasonSuperseded)
}
