package gateway

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

const (
	agedASweep = 20               // of one loop in a second
	agedTime   = 30 * time.Second // that a client has for its move; nothing is closed after it
)

// tellAged asks clients that have been here for longer than rebalance.max_age to move
// on, a few a second. They come elsewhere by the resume lane; who does not go stays,
// and is asked again an age later.
func (l *loop) tellAged() {
	most := l.edge.settings().Rebalance.MaxAge
	if most <= 0 || l.handing != nil || !l.edge.ready.Load() {
		return
	}
	now, told := l.seconds(), 0
	url, drawn := "", false
	for n := 0; n < len(l.slots) && told < agedASweep; n++ {
		l.aged = (l.aged + 1) % len(l.slots) // on from where the last sweep stopped
		c := l.slots[l.aged]
		if c == nil || c.closing || c.superseded || c.session == nil || !c.session.movable ||
			now-max(c.session.since, c.session.handedAt) < c.session.age(most) {
			continue
		}
		if !drawn {
			url, drawn = l.edge.likelyAddress(l.edge.others(0)), true
		}
		c.session.handedAt = max(now, 1)
		c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
			Reason: "max_age", DeadlineMs: uint32(agedTime.Milliseconds()), Url: url, Ticket: c.resumeTicket(),
		}}})
		c.hasTold()
		told++
	}
}

// age is how long this session may stay: most, give or take a fifth of it, by its id.
func (s *session) age(most time.Duration) uint32 {
	return ceilSeconds(most*4/5 + most*2/5*time.Duration(s.id[0])/255)
}
