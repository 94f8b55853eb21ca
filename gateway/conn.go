package gateway

import (
	"errors"
	"io"
	"net/netip"

	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/sendq"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
	"github.com/spillway-io/spillway/gateway/leave"
	"github.com/spillway-io/spillway/gateway/ticket"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// conn is one WebSocket; everything in it is owned by its loop.
type conn struct {
	loop       *loop
	sock       poller.Conn
	token      uint64
	in         wsframe.Reader
	out        sendq.Queue
	session    *session       // nil until its credentials were good
	client     *netip.Addr    // nil: the socket's own, as proxies.client
	offered    *ticket.Ticket // came with the upgrade; nil once connect looked at it
	subs       []*subscription
	calls      *calls // nil until the first publish or history read
	deadline   uint32 // second at which the present state is over; 0: none
	progress   uint32 // second of the last write that took something, or in which writes began to block
	asked      uint32 // millisecond of the edge in which its connect frame came
	heldBytes  int
	behind     int   // subscriptions in subBehind
	refused    uint8 // connect frames that were not good
	greeting   greeting
	catchup    catchup
	dirty      bool
	blocked    bool // the socket had no room: the poller tells when it has
	paused     bool // not read: it asks on without reading answers
	pinged     bool
	pulling    bool // one catch-up pull at a time: each fills half of the queue
	closing    bool // the close frame is queued; nothing follows it
	finished   bool // our half is shut
	closed     bool
	counted    bool       // in the loop's index: of its session's conns this one counts
	superseded bool       // another one does; this one delivers on until its deadline
	mark       leave.Mark // of departures
}

// greeting is how far a conn got before its session.
type greeting uint8

const (
	greetWaiting  greeting = iota // no connect frame yet
	greetChecking                 // its token is being verified
	greetDone
)

// from is the address of the client; not valid: it cannot be told.
func (c *conn) from() netip.Addr {
	if c.client != nil {
		return *c.client
	}
	return c.sock.RemoteAddr().Addr()
}

// read takes what the socket has, once a turn, into the loop's one buffer.
func (c *conn) read() {
	n, err := c.sock.Read(c.loop.readBuf)
	switch {
	case errors.Is(err, poller.ErrAgain):
		return
	case errors.Is(err, io.EOF):
		c.drop(reasonClient)
		return
	case err != nil:
		c.drop(reasonReset)
		return
	}
	if c.finished {
		return // draining, so that our close frame is not eaten by a reset
	}
	c.touch()
	c.feed(c.loop.readBuf[:n])
}

// feed gives bytes of the client to the frame reader and serves what is whole.
func (c *conn) feed(b []byte) {
	for len(b) > 0 && !c.closing && !c.closed {
		var m wsframe.Message
		var err error
		m, b, err = c.in.Next(b)
		if err != nil {
			c.protocolError(err)
			return
		}
		switch m.Kind {
		case wsframe.None:
			return
		case wsframe.Text:
			commands{c}.message(m.Data)
		case wsframe.Binary:
			c.closeRaw(wire.CloseUnsupported, "this subprotocol is text", reasonProtocol)
		case wsframe.Ping:
			c.push(wsframe.AppendFrame(nil, wsframe.Pong, m.Data))
		case wsframe.Pong:
			// touch said it all
		case wsframe.Close:
			c.answerClose(m.Data)
		}
	}
	c.pace()
}

// push queues a frame that is never let go.
func (c *conn) push(frame []byte) {
	if c.closing || c.closed {
		return
	}
	if !c.out.Push(frame) {
		c.drop(reasonSlow)
		return
	}
	c.loop.markDirty(c)
}

// send queues a reply or a push.
func (c *conn) send(f *clientv1.ServerFrame) {
	if c.closing || c.closed {
		return
	}
	l := c.loop
	l.scratch = wire.AppendServer(l.scratch[:0], f)
	c.push(wsframe.AppendFrame(make([]byte, 0, len(l.scratch)+wsframe.MaxHeader), wsframe.Text, l.scratch))
}

// pushEvent queues the event at s.pos+1. If the queue is full, the events in it
// are let go and the subscriptions they belong to fall behind (history) or hear
// of a gap. false: it was not queued; with history s is behind now, and nothing after
// it may be queued.
func (c *conn) pushEvent(s *subscription, f feed.Frame) bool {
	if c.closing || c.closed {
		return false
	}
	if c.out.PushEvent(f.Text, sendq.Tag{Owner: s.id, Offset: f.Offset}) {
		s.pos = f.Offset
		c.loop.markDirty(c)
		c.loop.edge.metrics.deliveries.Inc()
		return true
	}
	c.overflow(s, f.Offset)
	return false
}

// flush writes what is queued, as one buffer where it can.
func (c *conn) flush() {
	n, err := c.out.Flush(c.sock, c.loop.flushBuf)
	if n > 0 {
		c.progress = c.loop.seconds()
	}
	again := errors.Is(err, poller.ErrAgain)
	if err != nil && !again {
		c.drop(reasonReset)
		return
	}
	if again != c.blocked {
		c.blocked = again
		c.progress = c.loop.seconds() // of a stall: it begins here
		if err := c.loop.poller.SetWrite(c.sock, again); err != nil {
			c.drop(reasonReset)
			return
		}
	}
	if again {
		return
	}
	c.pace()
	if c.closing {
		c.finish()
		return
	}
	c.drained()
	c.catchUp()
	commands{c}.nextCall()
}

// subscription finds the conn's subscription of a channel.
func (c *conn) subscription(channel string) *subscription {
	ch := c.loop.channels[channel]
	if ch == nil {
		return nil
	}
	if len(ch.subs) < len(c.subs) {
		for _, s := range ch.subs {
			if s.c == c {
				return s
			}
		}
		return nil
	}
	for _, s := range c.subs {
		if s.channel == ch {
			return s
		}
	}
	return nil
}

// remove ends one subscription.
func (c *conn) remove(s *subscription) {
	for i, have := range c.subs {
		if have == s {
			last := len(c.subs) - 1
			c.subs[i] = c.subs[last]
			c.subs[last] = nil
			c.subs = c.subs[:last]
			break
		}
	}
	for _, f := range s.held {
		c.heldBytes -= len(f.Text)
	}
	s.held = nil
	s.caughtUp()
	switch s.state {
	case subPulling:
		c.pulling = c.pulling && s.parked
	case subBehind:
		c.behind--
	}
	c.loop.leave(s)
}
