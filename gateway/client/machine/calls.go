package machine

import (
	"fmt"
	"maps"
	"slices"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// commandKind says what an open command was for.
type commandKind uint8

const (
	cmdConnect commandKind = iota
	cmdSubscribe
	cmdUnsubscribe
	cmdPing
	cmdRefresh
	cmdCall
)

// command was sent and is not answered yet.
type command struct {
	kind commandKind
	subs []*Subscription
	call *Call // nil also if the caller gave up
}

// Call is a question of the application that waits for its answer.
type Call struct {
	Frame  *clientv1.ClientFrame
	Resend bool          // harmless to send twice: reads, publishes with a key
	Done   chan struct{} // for the caller, who closes it on FinishCall
	Reply  *clientv1.ServerFrame
	Err    error
	over   bool
}

// Call takes a question; it is sent when there is a connection.
func (m *Machine) Call(c *Call) {
	switch {
	case m.state == Disconnected && m.err != nil:
		m.finish(c, nil, m.err)
	case m.state == Disconnected:
		m.finish(c, nil, ErrNotConnected)
	case len(m.waiting)+m.underWay() >= maxCalls:
		m.finish(c, nil, ErrTooManyCalls)
	default:
		m.waiting = append(m.waiting, c)
		m.sendWaiting()
	}
}

// underWay counts the commands that are not answered.
func (m *Machine) underWay() (n int) {
	for _, l := range []*link{m.link, m.old} {
		if l != nil {
			n += len(l.open)
		}
	}
	return n
}

// sendWaiting sends what waits, if there is a connection.
func (m *Machine) sendWaiting() {
	l := m.link
	if l == nil || l.phase != up {
		return
	}
	calls := m.waiting
	m.waiting = nil
	for _, c := range calls {
		if size := len(wire.AppendClient(nil, c.Frame)) + 10; size > l.maxFrame {
			m.finish(c, nil, &Error{
				Code: "too_large", Message: fmt.Sprintf("a frame of %d bytes, the server takes %d", size, l.maxFrame),
			})
			continue
		}
		m.command(l, &command{kind: cmdCall, call: c}, c.Frame)
	}
}

// answer finishes the call that a reply belongs to.
func (m *Machine) answer(l *link, f *clientv1.ServerFrame) {
	c := l.open[f.Id]
	if f.Id == 0 || c == nil {
		return
	}
	delete(l.open, f.Id)
	if c.kind == cmdCall {
		m.finish(c.call, f, nil)
	}
}

// GiveUp: the caller does not wait any more.
func (m *Machine) GiveUp(c *Call) {
	c.over = true
	for i, w := range m.waiting {
		if w == c {
			m.waiting = append(m.waiting[:i:i], m.waiting[i+1:]...)
			return
		}
	}
}

func (m *Machine) finish(c *Call, reply *clientv1.ServerFrame, err error) {
	if c == nil || c.over {
		return
	}
	c.over, c.Reply, c.Err = true, reply, err
	m.do(FinishCall{c})
}

// cutOff: link l is gone. Questions that may be asked twice wait for the next one, in
// their order and before newer ones.
func (m *Machine) cutOff(l *link) {
	var again []*Call
	for _, id := range slices.Sorted(maps.Keys(l.open)) {
		c := l.open[id].call
		switch {
		case c == nil || c.over:
		case c.Resend:
			again = append(again, c)
		default:
			m.finish(c, nil, ErrOutcomeUnknown)
		}
	}
	l.open = nil
	m.waiting = append(again, m.waiting...)
}
