package gateway

import (
	"net/netip"
	"time"

	"github.com/spillway-io/spillway/gateway/leave"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// The edge, a loop and a conn as package leave sees them.
type (
	leavingEdge Edge
	leavingLoop loop
	leavingConn conn
)

var (
	_ leave.Edge  = (*leavingEdge)(nil)
	_ leave.Conns = (*leavingLoop)(nil)
	_ leave.Conn  = (*leavingConn)(nil)
)

func (e *leavingEdge) Ready() bool { return e.ready.Load() }
func (e *leavingEdge) Conns() int  { return int(e.counts.conns.Load()) }
func (e *leavingEdge) Held() int   { return int(e.counts.held()) }

func (e *leavingEdge) SetLeaving(on bool) {
	if on {
		e.ready.Store(false)
		e.gate.SetLeaving(true)
		e.members.SetState(gatewayv1.State_STATE_DRAINING)
		return
	}
	e.members.SetState(gatewayv1.State_STATE_SERVING)
	e.gate.SetLeaving(false)
	e.ready.Store(true)
}

// leaveOrder is an order on its way to a loop.
type leaveOrder struct{ leave.Order }

func (m leaveOrder) apply(l *loop) { m.Apply(l.leaving) }

func (l *leavingLoop) Post(o leave.Order)       { l.inbox.Post(leaveOrder{o}) }
func (l *leavingLoop) Slots() int               { return len(l.slots) }
func (l *leavingLoop) Now() (time.Time, uint32) { return l.now, (*loop)(l).seconds() }

func (l *leavingLoop) At(slot int) leave.Conn { return leaves(l.slots[slot]) }

func (l *leavingLoop) Find(token uint64) leave.Conn { return leaves((*loop)(l).find(token)) }

// leaves is c for package leave; nil stays nil.
func leaves(c *conn) leave.Conn {
	if c == nil {
		return nil
	}
	return (*leavingConn)(c)
}

func (c *leavingConn) Token() uint64     { return c.token }
func (c *leavingConn) Mark() *leave.Mark { return &c.mark }
func (c *leavingConn) Stay() *leave.Stay { return &c.session.stay }
func (c *leavingConn) From() netip.Addr  { return (*conn)(c).from() }

func (c *leavingConn) Kind() leave.Kind {
	switch {
	case c.closing || c.closed || c.superseded || c.catchup.out:
		return leave.Gone
	case c.session == nil || !c.session.movable:
		return leave.Unmovable
	case c.session.claims.Critical:
		return leave.Critical
	}
	return leave.Movable
}

// Hint sends `reconnect` (PROTOCOL.md); the conn delivers on until its client has left it.
func (c *leavingConn) Hint(h leave.Hint) bool {
	conn, ticket := (*conn)(c), ""
	if h.Granted {
		ticket = commands{conn}.movedTicket(h.Operation, h.Target, h.From, h.Until)
	}
	if ticket == "" {
		ticket = commands{conn}.resumeTicket()
	}
	conn.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
		Reason: h.Reason, AfterMs: uint32(h.After.Milliseconds()), DeadlineMs: uint32(h.Deadline.Milliseconds()), Url: h.URL, Ticket: ticket,
	}}})
	if c.closing || c.closed {
		return false // its queue was full
	}
	conn.hinted()
	return true
}

func (c *leavingConn) ShutDown() bool {
	switch {
	case c.closing:
		return false
	case c.superseded:
		(*conn)(c).closeSuperseded()
	default:
		(*conn)(c).closeWith(wire.CloseShutdown, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "this edge is leaving", reasonShutdown)
	}
	return true
}

// leaveReason is why a conn's client is gone, as far as a departure tells.
func leaveReason(reason string) leave.Reason {
	switch reason {
	case reasonShutdown:
		return leave.ShutDown
	case reasonClient, reasonSuperseded:
		return leave.Itself
	}
	return leave.OtherReason
}
