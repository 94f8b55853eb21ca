package gateway

import (
	"errors"

	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Why a conn ended, as the metric's closed set of labels has it.
const (
	reasonClient     = "client"   // it said so, or shut its half
	reasonReset      = "reset"    // the socket failed
	reasonProtocol   = "protocol" // it broke RFC 6455
	reasonPing       = "ping_timeout"
	reasonSlow       = "slow_consumer"
	reasonToken      = "credentials" // none that are good, or they ran out
	reasonShutdown   = "shutdown"
	reasonSuperseded = "superseded" // another conn of its session counts
	reasonRevoked    = "revoked"
	reasonDisconnect = "disconnect" // an operator said so
)

var closeReasons = []string{reasonClient, reasonReset, reasonProtocol, reasonPing, reasonSlow, reasonToken, reasonShutdown, reasonSuperseded, reasonRevoked, reasonDisconnect}

// closeWith ends a conn for a cause of ours: an error frame that names the close
// code, since proxies and resets eat codes; then the close frame.
func (c *conn) closeWith(code wire.CloseCode, why clientv1.ErrorCode, text, reason string) {
	c.closeAnswering(0, code, why, text, reason)
}

// closeAnswering is closeWith in answer to a command.
func (c *conn) closeAnswering(id uint32, code wire.CloseCode, why clientv1.ErrorCode, text, reason string) {
	number := uint32(code)
	c.send(&clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Error{Error: &clientv1.Error{
		Code: why, Message: text, Temporary: code < 4100, Close: &number,
	}}})
	c.closeRaw(code, text, reason)
}

// closeRaw queues a close frame; what is queued before it goes out first.
func (c *conn) closeRaw(code wire.CloseCode, text, reason string) {
	if c.closing || c.closed {
		return
	}
	c.push(wsframe.AppendClose(nil, uint16(code), text))
	c.beginClosing(reason)
}

// protocolError answers a frame that breaks RFC 6455 or a limit.
func (c *conn) protocolError(err error) {
	var bad *wsframe.Error
	if !errors.As(err, &bad) {
		c.drop(reasonReset)
		return
	}
	if wire.CloseCode(bad.Code) == wire.CloseTooBig {
		c.fail(0, clientv1.ErrorCode_ERROR_CODE_TOO_LARGE, bad.Reason)
	}
	c.closeRaw(wire.CloseCode(bad.Code), bad.Reason, reasonProtocol)
}

// answerClose echoes the client's close frame (RFC 6455 5.5.1).
func (c *conn) answerClose(payload []byte) {
	if c.closing {
		return
	}
	c.push(wsframe.AppendFrame(nil, wsframe.Close, payload))
	c.beginClosing(reasonClient)
}

// beginClosing leaves all channels at once and waits for the queue to drain,
// CloseWait at most. The conn counts as open until its socket is closed.
func (c *conn) beginClosing(reason string) {
	c.closing = true
	c.ended(reason)
	c.leaveAll()
	c.deadline = c.loop.seconds() + max(ceilSeconds(c.loop.edge.cfg.CloseWait), 1)
	c.loop.markDirty(c)
}

// finish shuts our half once the close frame is written. The socket is closed
// when the client's half ends: closed with unread input it would be reset, and the
// reset would eat the close frame.
func (c *conn) finish() {
	if c.finished {
		return
	}
	c.finished = true
	if err := c.sock.CloseWrite(); err != nil {
		c.drop(reasonReset)
	}
}

// drop closes the socket at once.
func (c *conn) drop(reason string) {
	if c.closed {
		return
	}
	if !c.closing {
		c.ended(reason)
		c.closing = true
		c.leaveAll()
	}
	c.closed = true
	c.sock.Close()
	c.loop.forget(c)
}

func (c *conn) leaveAll() {
	for len(c.subs) > 0 {
		c.remove(c.subs[len(c.subs)-1])
	}
}

// deadlinePassed ends whatever state had a deadline.
func (c *conn) deadlinePassed() {
	switch {
	case c.closing:
		c.drop(reasonClient)
	case c.superseded:
		c.closeSuperseded()
	case c.session == nil:
		c.deadline = 0
		c.closeWith(wire.CloseCredentials, clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, "no good connect frame in time", reasonToken)
	}
}

// expired closes a session whose token has run out.
func (c *conn) expired() {
	c.closeWith(wire.CloseCredentials, clientv1.ErrorCode_ERROR_CODE_EXPIRED, "the token has expired", reasonToken)
}
