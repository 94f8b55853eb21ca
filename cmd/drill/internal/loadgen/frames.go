package loadgen

import (
	"bytes"
	"time"

	"github.com/spillway-io/spillway/gateway/client/machine"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

var (
	eventHead = []byte(`{"type":"event","channel":`)
	dataHead  = []byte(`,"data":`)
)

// text serves one message: frames joined by LF.
func (l *loop) text(k *conn, b []byte) error {
	for use := k.use; len(b) > 0 && k.use == use && k.state == open; {
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
	c := k.client
	for i := range c.subs {
		rest, ok := bytes.CutPrefix(b, c.subs[i].channel.head)
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
		l.checkStream(k, i, offset)
		if c.conns.next != nil { // while it moves the machine may keep the event
			l.tell(k, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{
				Channel: c.subs[i].channel.name, Offset: offset, Data: bytes.Clone(data),
			}}})
			return true
		}
		e := l.event.Frame.(*clientv1.ServerFrame_Event).Event
		e.Channel, e.Offset, e.Data = c.subs[i].channel.name, offset, data
		c.machine.Frame(l.time(), k.link, &l.event)
		for _, a := range c.machine.Take() {
			l.carryOut(c, a)
		}
		if c.behind {
			l.step(c)
		}
		// The timer may now be too early, which is harmless: Tick finds nothing to do.
		return true
	}
	return false
}

// tell gives a frame to the machine.
func (l *loop) tell(k *conn, f *clientv1.ServerFrame) {
	k.client.machine.Frame(l.time(), k.link, f)
	l.step(k.client)
}

// frame serves any frame: what it says is counted, then the machine hears it.
func (l *loop) frame(k *conn, line []byte) error {
	f, err := wire.DecodeServer(line)
	if err != nil {
		return errBroken
	}
	c := k.client
	switch m := f.Frame.(type) {
	case *clientv1.ServerFrame_Event:
		l.checkStream(k, c.find(m.Event.Channel), m.Event.Offset)
	case *clientv1.ServerFrame_Connected:
		l.connected(k, m.Connected)
	case *clientv1.ServerFrame_Subscribed:
		for _, e := range m.Subscribed.Subscriptions {
			l.verdict(k, e)
		}
	case *clientv1.ServerFrame_Unsubscribed:
		if m.Unsubscribed.Error != nil || f.Id == 0 {
			l.counts.SubErrors++
			l.errorWord(m.Unsubscribed.Error)
		}
		if i := c.find(m.Unsubscribed.Channel); i >= 0 && i < len(k.subs) {
			k.subs[i].live = false
		}
	case *clientv1.ServerFrame_Gap:
		l.counts.Gaps++
		if i := c.find(m.Gap.Channel); i >= 0 && i < len(k.subs) {
			k.subs[i].end = m.Gap.Offset
		}
	case *clientv1.ServerFrame_Reconnect:
		l.counts.Hints++
	case *clientv1.ServerFrame_Busy:
		k.refused = "busy"
	case *clientv1.ServerFrame_Error:
		l.errorWord(m.Error)
	}
	l.tell(k, f)
	return nil
}

func (l *loop) errorWord(e *clientv1.Error) {
	if e != nil {
		l.errors[wire.ErrorWord(e.Code)]++
	}
}

// connected counts a welcome.
func (l *loop) connected(k *conn, m *clientv1.Connected) {
	if k.welcomed {
		return
	}
	c := k.client
	k.welcomed = true
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
	if k.move && c.machine.State() == machine.Connected {
		l.counts.Moved++
		c.moves = min(c.moves+1, maxMoves-1)
	}
	for _, e := range m.Subscriptions {
		l.verdict(k, e)
	}
}

// verdict counts where a subscription stands on this connection.
func (l *loop) verdict(k *conn, e *clientv1.SubscriptionEntry) {
	i := k.client.find(e.Channel)
	if i < 0 || i >= len(k.subs) {
		return
	}
	s := &k.subs[i]
	switch {
	case e.Error != nil:
		l.counts.SubErrors++
		l.errorWord(e.Error)
	case e.Pending:
		l.counts.Pending++
	case e.Recovered:
		l.counts.Recovered++
		s.live = true
	default:
		if _, known := k.client.subs[i].Position(); known {
			l.counts.NotRecovered++
		}
		s.live, s.end = true, e.Offset
	}
}
