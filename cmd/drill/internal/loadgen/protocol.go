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
func (l *loop) text(k *conn, b []byte) error {
	for len(b) > 0 && k.fd >= 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if bytes.HasPrefix(line, eventHead) && l.fastEvent(k, line[len(eventHead):]) {
			continue
		}
		if err := l.frame(k, line); err != nil {
			return err
		}
	}
	return nil
}

// fastEvent serves an event whose fields stand in the order in which our edges
// write them; false: look again, with a JSON reader.
func (l *loop) fastEvent(k *conn, b []byte) bool {
	for i := range k.client.subs {
		rest, ok := bytes.CutPrefix(b, k.client.subs[i].channel.head)
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
		l.delivered(k, i, offset, data)
		return true
	}
	return false
}

// frame serves any frame.
func (l *loop) frame(k *conn, line []byte) error {
	f, err := wire.DecodeServer(line)
	if err != nil {
		return errBroken
	}
	switch m := f.Frame.(type) {
	case *clientv1.ServerFrame_Event:
		l.delivered(k, k.client.find(m.Event.Channel), m.Event.Offset, m.Event.Data)
	case *clientv1.ServerFrame_Connected:
		l.connected(k, m.Connected)
	case *clientv1.ServerFrame_Subscribed:
		for _, e := range m.Subscribed.Subscriptions {
			l.verdict(k, e)
		}
		l.takeOver(k.client)
	case *clientv1.ServerFrame_Unsubscribed:
		l.counts.SubErrors++
		l.errorWord(m.Unsubscribed.Error)
		if i := k.client.find(m.Unsubscribed.Channel); i >= 0 && i < len(k.subs) {
			k.subs[i].live, k.subs[i].dead = false, true
		}
	case *clientv1.ServerFrame_Gap:
		l.counts.Gaps++
		if i := k.client.find(m.Gap.Channel); i >= 0 && i < len(k.subs) {
			l.place(k, i, m.Gap.Epoch, m.Gap.Offset)
		}
	case *clientv1.ServerFrame_Reconnect:
		l.hinted(k, m.Reconnect)
	case *clientv1.ServerFrame_Busy:
		k.refused = "busy"
		k.told = told{wait: time.Duration(m.Busy.RetryAfterMs) * time.Millisecond, url: m.Busy.Url, pass: m.Busy.Ticket}
	case *clientv1.ServerFrame_Pong:
		if m.Pong.Ticket != "" {
			k.client.ticket = m.Pong.Ticket
		}
		if m.Pong.RetryWindowMs > 0 {
			k.client.window = time.Duration(m.Pong.RetryWindowMs) * time.Millisecond
		}
	case *clientv1.ServerFrame_Error:
		l.errorFrame(k, f.Id, m.Error)
	}
	return nil
}

// errorFrame: a ticket that is not good is followed by a token once; a second try with
// the same credentials would not be better.
func (l *loop) errorFrame(k *conn, id uint32, m *clientv1.Error) {
	l.errorWord(m)
	if m.RetryAfterMs != nil {
		k.told.wait = time.Duration(*m.RetryAfterMs) * time.Millisecond
	}
	switch {
	case k.state != greeting || id != 1:
	case k.offers && m.Close == nil:
		k.client.ticket, k.client.moving.ticket, k.retry = "", "", true
		l.greet(k)
	default:
		l.end(k, CauseClosed)
	}
}

func (l *loop) errorWord(e *clientv1.Error) {
	if e != nil {
		l.errors[wire.ErrorWord(e.Code)]++
	}
}

// connected: the client is up, or up a second time while it moves.
func (l *loop) connected(k *conn, m *clientv1.Connected) {
	if k.state != greeting {
		return
	}
	c, old := k.client, k.other()
	k.state, k.upSince, k.node = up, l.now, m.Node
	if k.first {
		l.ramping--
	}
	l.counts.Connected++
	if m.Resumed {
		l.counts.Resumed++
	}
	l.arrivals = count(l.arrivals, time.Duration(l.now))
	l.byNode[m.Node] = count(l.byNode[m.Node], time.Duration(l.now))
	l.connect.add(l.now - k.began)
	k.interval = int64(m.PingIntervalMs) * int64(time.Millisecond)
	k.pong = int64(m.PongTimeoutMs) * int64(time.Millisecond)
	c.window = time.Duration(m.RetryWindowMs) * time.Millisecond
	if l.obeys {
		c.ticket = m.Ticket
	}
	c.next, c.cur = told{}, k
	if old.state != up {
		l.returned(c)
	}
	for _, e := range m.Subscriptions {
		l.verdict(k, e)
	}
	l.timers.clear(&c.timer)
	l.timers.clear(&k.timer)
	if k.interval > 0 { // the first ping after a random part: nobody pings in step
		l.timers.set(&k.timer, l.now+l.rand.Int64N(k.interval))
	}
	if old.state == up {
		l.arrived(k, old)
		return
	}
	l.takeOver(c)
}

// returned ends an outage, if there was one.
func (l *loop) returned(c *client) {
	l.up++
	l.returns = count(l.returns, time.Duration(l.now))
	c.first = false
	if c.outage == 0 {
		return
	}
	l.outage.add(l.now - c.outage)
	c.behind, c.since, c.outage = true, c.outage, 0
}

// verdict is where a subscription stands on this connection.
func (l *loop) verdict(k *conn, e *clientv1.SubscriptionEntry) {
	i := k.client.find(e.Channel)
	if i < 0 || i >= len(k.subs) {
		return
	}
	s, p := &k.subs[i], &k.client.subs[i]
	switch {
	case e.Error != nil:
		l.counts.SubErrors++
		l.errorWord(e.Error)
		s.dead = true
	case e.Pending:
		l.counts.Pending++
	case e.Recovered:
		l.counts.Recovered++
		s.live, s.head = true, e.Offset
	default:
		if p.known && !l.cfg.Forget {
			l.counts.NotRecovered++
		}
		l.place(k, i, e.Epoch, e.Offset)
	}
}
