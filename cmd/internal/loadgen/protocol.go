package loadgen

import (
	"bytes"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

var (
	eventHead = []byte(`{"type":"event","channel":`)
	dataHead  = []byte(`,"data":`)
)

// text serves one message: frames joined by LF.
func (l *loop) text(c *conn, b []byte) error {
	for len(b) > 0 && c.fd >= 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if bytes.HasPrefix(line, eventHead) && l.fastEvent(c, line[len(eventHead):]) {
			continue
		}
		if err := l.frame(c, line); err != nil {
			return err
		}
	}
	return nil
}

// fastEvent serves an event whose fields stand in the order in which our edges
// write them; false: look again, with a JSON reader.
func (l *loop) fastEvent(c *conn, b []byte) bool {
	for i := range c.subs {
		s := &c.subs[i]
		rest, ok := bytes.CutPrefix(b, s.channel.head)
		if !ok {
			continue
		}
		offset, n := uint64(0), 0
		for n < len(rest) && n < 16 && rest[n]-'0' <= 9 {
			offset = offset*10 + uint64(rest[n]-'0')
			n++
		}
		data, ok := bytes.CutPrefix(rest[n:], dataHead)
		if !ok || n == 0 {
			return false
		}
		l.delivered(c, s, offset, data)
		return true
	}
	return false
}

// frame serves any frame.
func (l *loop) frame(c *conn, line []byte) error {
	f, err := wire.DecodeServer(line)
	if err != nil {
		return errBroken
	}
	switch m := f.Frame.(type) {
	case *clientv1.ServerFrame_Event:
		l.delivered(c, c.find(m.Event.Channel), m.Event.Offset, m.Event.Data)
	case *clientv1.ServerFrame_Connected:
		l.connected(c, m.Connected)
	case *clientv1.ServerFrame_Subscribed:
		for _, e := range m.Subscribed.Subscriptions {
			l.verdict(c, e)
		}
	case *clientv1.ServerFrame_Unsubscribed:
		l.counts.SubErrors++
		l.errorWord(m.Unsubscribed.Error)
		if s := c.find(m.Unsubscribed.Channel); s != nil {
			s.live = false
		}
	case *clientv1.ServerFrame_Gap:
		l.gap(c, m.Gap)
	case *clientv1.ServerFrame_Reconnect:
		l.counts.Hints++
	case *clientv1.ServerFrame_Busy:
		c.refused, c.wait = "busy", time.Duration(m.Busy.RetryAfterMs)*time.Millisecond
	case *clientv1.ServerFrame_Error:
		l.errorWord(m.Error)
		if ms := m.Error.RetryAfterMs; ms != nil {
			c.wait = time.Duration(*ms) * time.Millisecond
		}
		if c.state == greeting && f.Id == 1 {
			l.end(c, CauseClosed) // a second try with the same credentials would not be better
		}
	}
	return nil
}

func (l *loop) errorWord(e *clientv1.Error) {
	if e != nil {
		l.errors[wire.ErrorWord(e.Code)]++
	}
}

// connected: the client is up.
func (l *loop) connected(c *conn, m *clientv1.Connected) {
	if c.state != greeting {
		return
	}
	c.state, c.upSince, c.failures = up, l.now, 0
	l.inFlight--
	l.up++
	l.counts.Connected++
	l.arrivals = count(l.arrivals, time.Duration(l.now))
	l.connect.add(l.now - c.began)
	c.interval = int64(m.PingIntervalMs) * int64(time.Millisecond)
	c.pong = int64(m.PongTimeoutMs) * int64(time.Millisecond)
	c.window = time.Duration(m.RetryWindowMs) * time.Millisecond
	for _, e := range m.Subscriptions {
		l.verdict(c, e)
	}
	l.timers.clear(c)
	if c.interval > 0 { // the first ping after a random part: nobody pings in step
		l.timers.set(c, l.now+l.rand.Int64N(c.interval))
	}
}

// verdict is where a subscription stands on this connection.
func (l *loop) verdict(c *conn, e *clientv1.SubscriptionEntry) {
	s := c.find(e.Channel)
	if s == nil {
		return
	}
	switch {
	case e.Error != nil:
		l.counts.SubErrors++
		l.errorWord(e.Error)
		return
	case e.Pending:
		l.counts.Pending++
		return
	case e.Recovered:
		l.counts.Recovered++
	default:
		if s.known {
			l.counts.NotRecovered++
			l.announce(s, e.Epoch, e.Offset)
		}
		s.epoch, s.offset, s.seq = e.Epoch, e.Offset, 0
	}
	s.known, s.live = true, true
}

// announce counts what the server says is lost.
func (l *loop) announce(s *subscription, epoch string, offset uint64) {
	if epoch == s.epoch && offset > s.offset {
		l.counts.Announced += offset - s.offset
	}
}

func (l *loop) gap(c *conn, m *clientv1.Gap) {
	l.counts.Gaps++
	if s := c.find(m.Channel); s != nil {
		l.announce(s, m.Epoch, m.Offset)
		s.epoch, s.offset, s.seq = m.Epoch, m.Offset, 0
	}
}
