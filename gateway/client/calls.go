package client

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
	call *call // nil also if the caller gave up
}

// call is a question of the application that waits for its answer.
type call struct {
	frame  *clientv1.ClientFrame
	resend bool          // harmless to send twice: reads, publishes with a key
	done   chan struct{} // closed when reply or err is there
	reply  *clientv1.ServerFrame
	err    error
	over   bool
}

// newCall takes a question; it is sent when there is a connection.
func (m *machine) newCall(c *call) {
	switch {
	case m.state == Disconnected && m.err != nil:
		m.finish(c, nil, m.err)
	case m.state == Disconnected:
		m.finish(c, nil, ErrNotConnected)
	case len(m.waiting)+len(m.open) >= maxCalls:
		m.finish(c, nil, ErrTooManyCalls)
	default:
		m.waiting = append(m.waiting, c)
		if m.link != nil && m.link.phase == up {
			m.sendWaiting()
		}
	}
}

func (m *machine) sendWaiting() {
	calls := m.waiting
	m.waiting = nil
	for _, c := range calls {
		if size := len(wire.AppendClient(nil, c.frame)) + 10; size > m.link.maxFrame {
			m.finish(c, nil, &Error{
				Code: "too_large", Message: fmt.Sprintf("a frame of %d bytes, the server takes %d", size, m.link.maxFrame),
			})
			continue
		}
		m.command(&command{kind: cmdCall, call: c}, c.frame)
	}
}

// answer finishes the call that a reply belongs to.
func (m *machine) answer(f *clientv1.ServerFrame) {
	c := m.open[f.Id]
	if f.Id == 0 || c == nil {
		return
	}
	delete(m.open, f.Id)
	if c.kind == cmdCall {
		m.finish(c.call, f, nil)
	}
}

// giveUp: the caller does not wait any more.
func (m *machine) giveUp(c *call) {
	c.over = true
	for i, w := range m.waiting {
		if w == c {
			m.waiting = append(m.waiting[:i:i], m.waiting[i+1:]...)
			return
		}
	}
}

func (m *machine) finish(c *call, reply *clientv1.ServerFrame, err error) {
	if c == nil || c.over {
		return
	}
	c.over, c.reply, c.err = true, reply, err
	m.do(finishCall{c})
}

// cutOff: the link is gone. Questions that may be asked twice wait for the next
// one, in their order and before newer ones.
func (m *machine) cutOff() {
	var again []*call
	for _, id := range slices.Sorted(maps.Keys(m.open)) {
		c := m.open[id].call
		switch {
		case c == nil || c.over:
		case c.resend:
			again = append(again, c)
		default:
			m.finish(c, nil, ErrOutcomeUnknown)
		}
	}
	clear(m.open)
	m.waiting = append(again, m.waiting...)
	for _, s := range m.subs {
		s.phase = idle
	}
}
