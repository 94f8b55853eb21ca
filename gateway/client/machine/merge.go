package machine

import (
	"slices"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// A subscription has one position and, while the client moves, two streams: what the
// new connection brings and what the old one still brings. Each runs without holes
// from somewhere at or below the position, except for the losses that it tells. So
// whichever brings position + 1 first is delivered, the other is dropped, and a
// loss on one counts only when the other cannot fill it.

// stream is one channel on one connection.
type stream struct {
	phase  subPhase
	askID  uint32
	asked  Position // what was asked for; zero: no position
	target Position // of the verdict: what is beyond it comes live
	epoch  string   // last told on this connection
	held   []news   // behind a loss that the other stream may fill, in order
	losses int      // in held
}

// news is an event, or (event nil) the loss of all up to a position.
type news struct {
	event  *clientv1.Event
	epoch  string // of the event
	to     Position
	reason string
	reload time.Duration
}

// maxHeld bytes may wait for the other stream. Beyond it the loss is told.
const maxHeld = 4 << 20

func (n *news) size() int {
	if n.event == nil {
		return 128
	}
	return 256 + len(n.event.Data)
}

// hear takes news from a stream that is live.
func (m *Machine) hear(s *Subscription, st *stream, n news) {
	if m.old == nil {
		m.apply(s, &n, true)
		return
	}
	m.hold(st, n)
	m.pump(s)
	for len(st.held) > 0 && m.heldBytes > maxHeld {
		m.shift(s, st)
		m.pump(s)
	}
	m.took(s)
}

// pump delivers all that can be.
func (m *Machine) pump(s *Subscription) {
	for {
		moved := m.drain(s, &s.at, &s.was)
		moved = m.drain(s, &s.was, &s.at) || moved
		switch a, b := s.at.held, s.was.held; {
		case moved:
		case len(a) == 0 || len(b) == 0:
			return
		case s.nearer(&b[0], &a[0]): // both have lost: no more than both
			m.shift(s, &s.was)
		default:
			m.shift(s, &s.at)
		}
	}
}

// drain delivers from one stream what can be.
func (m *Machine) drain(s *Subscription, st, other *stream) (moved bool) {
	for len(st.held) > 0 && (m.apply(s, &st.held[0], other.phase != live) || m.skip(s, st)) {
		m.pop(st)
		moved = true
	}
	return moved
}

// skip is true if the first of what is held leads to an epoch that the position, led
// by the other stream, has jumped over: later this stream reaches the position's too.
func (m *Machine) skip(s *Subscription, st *stream) bool {
	if st.losses < 2 || st.held[0].base().Epoch == s.pos.Epoch {
		return false
	}
	for _, n := range st.held[1:] {
		if n.event == nil && n.to.Epoch == s.pos.Epoch {
			return true
		}
	}
	return false
}

func (m *Machine) hold(st *stream, n news) {
	st.held = append(st.held, n)
	m.heldBytes += n.size()
	if n.event == nil {
		st.losses++
	}
}

// shift applies the first of what is held, loss or not.
func (m *Machine) shift(s *Subscription, st *stream) {
	m.apply(s, &st.held[0], true)
	m.pop(st)
}

func (m *Machine) pop(st *stream) {
	m.heldBytes -= st.held[0].size()
	if st.held[0].event == nil {
		st.losses--
	}
	if st.held = st.held[1:]; len(st.held) == 0 {
		st.held = nil
	}
}

// forget a stream and what it holds.
func (m *Machine) forget(st *stream) {
	for len(st.held) > 0 {
		m.pop(st)
	}
	*st = stream{}
}

// nearer: a loses less than b.
func (s *Subscription) nearer(a, b *news) bool {
	x, y := a.base(), b.base()
	if x.Epoch == y.Epoch {
		return x.Offset < y.Offset
	}
	return x.Epoch == s.pos.Epoch
}

// base is the position that news leads to, or needs.
func (n *news) base() Position {
	if n.event == nil {
		return n.to
	}
	return Position{n.epoch, n.event.Offset - 1}
}

// apply hands news over, or finds that there is nothing new in it. False: it is a
// loss, and it may not count yet.
func (m *Machine) apply(s *Subscription, n *news, may bool) bool {
	if n.event == nil {
		switch {
		case n.to.Epoch == s.pos.Epoch && n.to.Offset <= s.pos.Offset:
			return true
		case !may:
			return false
		}
		m.lose(s, n.to, n.reason, n.reload)
		return true
	}
	e := n.event
	if n.epoch != s.pos.Epoch || e.Offset <= s.pos.Offset {
		m.stats.Duplicates++
		return true
	}
	if e.Offset > s.pos.Offset+1 {
		if !may {
			return false
		}
		// No server should do this; but what is lost is told, always.
		m.lose(s, Position{n.epoch, e.Offset - 1}, Skipped, 0)
	}
	s.pos.Offset = e.Offset
	m.stats.Events++
	m.do(TellEvent{s, NewEvent(s.channel, n.epoch, e)})
	return true
}

func (m *Machine) lose(s *Subscription, to Position, reason string, reload time.Duration) {
	before := s.pos
	s.jump(to)
	m.stats.Gaps++
	m.do(TellGap{s, Gap{before, s.pos, reason, reload}})
}

// maxPast epochs are remembered. More than two need two failures within one move.
const maxPast = 4

// jump sets the position to one in another epoch, or further on in this one. Edges
// hear of new epochs one after the other: one that is behind may lead back, and then
// on to an epoch of which the application has seen a part.
func (s *Subscription) jump(to Position) {
	if to.Epoch != s.pos.Epoch {
		old := s.pos
		s.past = slices.DeleteFunc(s.past, func(p Position) bool {
			if p.Epoch == to.Epoch {
				to.Offset = max(to.Offset, p.Offset)
			}
			return p.Epoch == to.Epoch || p.Epoch == old.Epoch
		})
		if len(s.past) == maxPast {
			s.past = s.past[1:]
		}
		s.past = append(s.past, old)
	}
	s.pos = to
}

// stream of this subscription on link l; nil: it has none there.
func (m *Machine) stream(s *Subscription, l *link) *stream {
	switch {
	case s == nil:
		return nil
	case l == m.link:
		return &s.at
	case l == m.old:
		return &s.was
	}
	return nil
}

// event delivers what is new. What is at or below the position was delivered.
func (m *Machine) event(l *link, e *clientv1.Event) {
	s := m.subs[e.Channel]
	if st := m.stream(s, l); st != nil && st.phase == live {
		m.hear(s, st, news{event: e, epoch: st.epoch})
	}
}

// gap: the server let events go, or began a new epoch.
func (m *Machine) gap(l *link, g *clientv1.Gap) {
	s := m.subs[g.Channel]
	if st := m.stream(s, l); st != nil && st.phase == live {
		st.epoch = g.Epoch
		m.hear(s, st, news{to: Position{g.Epoch, g.Offset}, reason: g.Reason, reload: millis(g.ReloadAfterMs)})
	}
}

// offStreams: there is no connection.
func (m *Machine) offStreams() {
	for _, s := range m.subs {
		m.forget(&s.at)
		m.forget(&s.was)
		s.untaken = false
	}
	m.untaken = 0
}
