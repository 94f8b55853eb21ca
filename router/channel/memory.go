package channel

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/views"
)

// memory is what is known of a channel: where it stands, and its newest events.
type memory struct {
	// position: a fact of some moment, so a lower bound of the truth
	known   bool // epoch and head are set
	epoch   uint64
	head    uint64
	floor   uint64   // oldest offset that the store had when it was last read; 0: not known
	version uint64   // counts changes of epoch and head
	base    Position // the epoch, and the head that it was first known with: what is older may be of another

	// shown is the highest position that the store, an edge or another router has
	// shown; it outlives forgetting. A store below it has lost history.
	shown Position

	trust   views.Trust // when epoch, head and tail were last known to be the truth
	vouched uint64      // revision up to which a hand-over vouches for the position; 0: none does
	late    time.Time   // a run of unknown outcome may land until then: memory alone is no answer
	tail    tail
	keys    *recentKeys // of a channel that memory numbers
}

// baseAt is where an epoch began, as far as is known: at the latest at offset.
func (m *memory) baseAt(epoch, offset uint64) uint64 {
	if m.base.Epoch != epoch {
		return offset
	}
	return min(m.base.Offset, offset)
}

// forget drops what is believed of the channel: the next look at it loads.
func (m *memory) forget() {
	m.known, m.epoch, m.head, m.floor = false, 0, 0, 0
	m.version++
	m.trust, m.vouched = views.Trust{}, 0
	m.tail = tail{}
}

// move sets a new position that no event of ours led to.
func (m *memory) move(epoch, head uint64) {
	if m.known && m.epoch == epoch && m.head == head {
		return
	}
	m.known, m.epoch, m.head = true, epoch, head
	m.shown = m.shown.Max(Position{epoch, head})
	if m.base.Epoch != epoch {
		m.base = Position{epoch, head}
	}
	m.floor = 0
	if head == 0 {
		m.floor = 1 // nothing can be missing
	}
	m.version++
	m.tail = tail{}
}

// grow takes events that follow the head; the position was right, or the store would
// have refused them.
func (m *memory) grow(s *Step, events []*gatewayv1.BusEvent) {
	if len(m.tail.events) == 0 {
		m.tail.first = events[0].Offset
	}
	m.tail.append(events, tailBounds{
		before: uint64(max(0, s.Wall.Add(-s.Config.TailAge).UnixMilli())), events: s.Config.TailEvents, bytes: s.Config.TailBytes,
	})
	m.head = events[len(events)-1].Offset
	m.shown = m.shown.Max(Position{m.epoch, m.head})
	m.version++
}

// refill puts events that end at the head in place of a shorter tail.
func (m *memory) refill(events []*gatewayv1.BusEvent) {
	if len(events) <= len(m.tail.events) || events[len(events)-1].Offset != m.head {
		return
	}
	m.tail = tail{first: events[0].Offset}
	m.tail.append(events, tailBounds{})
}

// load takes the position that a read of the store found. version is the channel's from
// before the read: if it has moved since, only a larger position is newer.
func (m *memory) load(at Position, version uint64, trust views.Trust) {
	if m.shown.Above(at) || version != m.version && !m.known {
		return
	}
	if !m.known || m.epoch != at.Epoch || m.head != at.Offset {
		m.move(at.Epoch, at.Offset)
	}
	m.trust = trust
}

// keyed answers the offset of a publication: next, or that of the first with its key.
func (m *memory) keyed(p *Publication, next uint64) (offset uint64, repeat bool) {
	if p.Event.Key == "" {
		return next, false
	}
	if offset, ok := m.keys.offset(p.Key()); ok {
		return offset, true
	}
	if m.keys == nil {
		m.keys = newRecentKeys()
	}
	m.keys.put(p.Key(), next)
	return next, false
}
