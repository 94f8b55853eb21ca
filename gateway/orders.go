package gateway

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	enlistScan    = 2_048           // conns that a turn of a loop looks at: 0.1 ms
	closesATurn   = 256             // of the last ones
	mostAfter     = 2 * time.Second // of a hint: it is sent when its slot has come
	movedSlotLife = 10 * time.Second
)

// handing is a loop's part in the handover under way; owned by the loop.
type handing struct {
	*handover
	part  *handoverPart
	gen   uint8                // of conn.handed: a conn of an older handover is not in this one
	lists [numClasses][]uint64 // tokens, stale ones among them; told ones oldest first
	until []time.Time          // beside lists[classBare]
	quota int                  // left, with surplus
}

// enlisting has a loop take part, and walks over its conns, a piece a turn.
type enlisting struct {
	h    *handover
	next int
	part *handing
	done chan<- struct{} // capacity for every loop
}

func (m *enlisting) apply(l *loop) {
	if m.part == nil {
		l.handings++
		m.part = &handing{handover: m.h, part: &m.h.parts[l.id], gen: l.handings, quota: m.h.parts[l.id].quota}
		l.handing = m.part
	}
	if l.handing != m.part {
		m.done <- struct{}{}
		return
	}
	end := min(m.next+enlistScan, len(l.slots))
	for ; m.next < end; m.next++ {
		if c := l.slots[m.next]; c != nil {
			m.part.enlist(c)
		}
	}
	if m.next < len(l.slots) {
		l.inbox.Post(m)
		return
	}
	m.done <- struct{}{}
}

// enlist takes a conn in, or files it anew: one that has said `connect` meanwhile.
func (h *handing) enlist(c *conn) {
	if c.closing || c.closed || c.superseded || c.catchup.out {
		return
	}
	k := classUnmovable
	if c.session != nil && c.session.movable {
		if k = classPlain; c.session.claims.Critical {
			k = classCritical
		}
	}
	if h.surplus && (k != classPlain || h.quota == 0 || c.movedOfLate()) {
		return
	}
	if c.handed == h.gen && c.class != classNone {
		if c.class == k || c.class == classTold || c.class == classBare {
			return
		}
	} else {
		h.quota--
		c.class = classNone
		if h.named {
			h.sources.add(c.from())
		}
	}
	h.file(c, k)
}

// file puts a conn into a class.
func (h *handing) file(c *conn, k class) {
	h.unfile(c)
	c.handed, c.class = h.gen, k
	h.part.here[k].Add(1)
	h.lists[k] = append(h.lists[k], c.token)
}

func (h *handing) unfile(c *conn) {
	if c.handed == h.gen && c.class != classNone {
		h.part.here[c.class].Add(-1)
		c.class = classNone
	}
}

// leaves counts out a conn whose client is gone from here.
func (h *handing) leaves(c *conn, reason string) {
	if c.handed != h.gen || c.class == classNone {
		return
	}
	k := c.class
	h.unfile(c)
	told := k == classTold || k == classBare
	switch {
	case reason == reasonShutdown && told:
		h.stragglers.Add(1)
	case reason == reasonShutdown:
		h.closed.Add(1)
	case told && (reason == reasonClient || reason == reasonSuperseded):
		h.moved.Add(1)
	default:
		h.gone.Add(1)
	}
}

// pop takes the next conn of a class: the oldest of those told, else any.
func (h *handing) pop(l *loop, k class) *conn {
	for len(h.lists[k]) > 0 {
		list := h.lists[k]
		var token uint64
		if k == classTold || k == classBare {
			token, h.lists[k] = list[0], list[1:]
		} else {
			token, h.lists[k] = list[len(list)-1], list[:len(list)-1]
		}
		if k == classBare {
			h.until = h.until[1:]
		}
		if c := l.find(token); c != nil && c.handed == h.gen && c.class == k {
			return c
		}
	}
	return nil
}

// moveOrder tells clients to go, one a slot.
type moveOrder struct {
	h      *handover
	target string // member id; "": none
	url    string // "": the client's own list
	grant  bool
	grace  time.Duration // without one: to the close
	slots  []time.Time
	of     []class
}

func (m *moveOrder) apply(l *loop) {
	h := l.handing
	if h == nil || h.handover != m.h {
		return
	}
	for i, slot := range m.slots {
		k := m.of[i]
		if c := h.pop(l, k); c != nil {
			h.tell(c, m, slot)
		}
		h.part.served[k].Add(1)
	}
}

// tell sends the hint (PROTOCOL.md, reconnect); the conn delivers on until its client
// has left it.
func (h *handing) tell(c *conn, m *moveOrder, slot time.Time) {
	now := c.loop.now
	after := min(max(slot.Sub(now), 0), mostAfter)
	deadline, k, ticket := h.tail(), classTold, ""
	if !slot.Before(deadline) {
		deadline = h.endTime()
	}
	if m.grant {
		// A moved client comes at its slot; its next tries are in it too.
		ticket = c.movedTicket(h.operation, m.target, now.Add(after), now.Add(after+movedSlotLife))
	} else {
		k = classBare
		if until := slot.Add(m.grace); until.Before(deadline) || m.grace > 0 {
			deadline = until
		}
	}
	if ticket == "" {
		ticket = c.resumeTicket()
	}
	c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
		Reason: h.reason, AfterMs: uint32(after.Milliseconds()), DeadlineMs: uint32(max(deadline.Sub(now), 0).Milliseconds()),
		Url: m.url, Ticket: ticket,
	}}})
	if c.closing || c.closed {
		return // its queue was full
	}
	c.hinted()
	c.target = m.target
	h.file(c, k)
	if k == classBare {
		h.until = append(h.until, deadline)
	}
	if h.surplus {
		c.session.handedAt = max(c.loop.seconds(), 1)
	}
}

// closeOrder closes conns of one class, the oldest first of those told.
type closeOrder struct {
	h *handover
	n int
	k class
}

func (m *closeOrder) apply(l *loop) {
	h := l.handing
	if h == nil || h.handover != m.h {
		return
	}
	for range m.n {
		if c := h.pop(l, m.k); c != nil {
			c.shutDown()
		}
		h.part.served[m.k].Add(1)
	}
}

// graceOrder closes those told without a grant whose grace is over.
type graceOrder struct{ h *handover }

func (m graceOrder) apply(l *loop) {
	h := l.handing
	if h == nil || h.handover != m.h {
		return
	}
	for len(h.until) > 0 && !l.now.Before(h.until[0]) {
		h.until = h.until[1:]
		token := h.lists[classBare][0]
		h.lists[classBare] = h.lists[classBare][1:]
		if c := l.find(token); c != nil && c.handed == h.gen && c.class == classBare {
			c.shutDown()
		}
	}
}

// recallOrder files those who were sent to a target that is gone, and are still here,
// to be told anew.
type recallOrder struct {
	h      *handover
	target string
}

func (m recallOrder) apply(l *loop) {
	h := l.handing
	if h == nil || h.handover != m.h {
		return
	}
	list := h.lists[classTold]
	h.lists[classTold] = nil
	for _, token := range list {
		c := l.find(token)
		switch {
		case c == nil || c.handed != h.gen || c.class != classTold:
		case c.target != m.target:
			h.lists[classTold] = append(h.lists[classTold], token)
		case c.session.claims.Critical:
			h.file(c, classCritical)
		default:
			h.file(c, classPlain)
		}
	}
}

// closeAllOrder closes whoever is left, superseded conns too, a piece a turn.
type closeAllOrder struct {
	h    *handover
	next int
}

func (m *closeAllOrder) apply(l *loop) {
	for n := 0; m.next < len(l.slots) && n < closesATurn; m.next++ {
		switch c := l.slots[m.next]; {
		case c == nil || c.closing:
			continue
		case c.superseded:
			c.closeSuperseded()
		default:
			c.shutDown()
		}
		n++
	}
	if m.next < len(l.slots) {
		l.inbox.Post(m)
	}
}

// endHanding ends a loop's part; who was told may still go.
type endHanding struct{ h *handover }

func (m endHanding) apply(l *loop) {
	if l.handing != nil && l.handing.handover == m.h {
		l.handing = nil
	}
}

// shutDown closes a conn because the edge leaves.
func (c *conn) shutDown() {
	c.closeWith(wire.CloseShutdown, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "this edge is leaving", reasonShutdown)
}
