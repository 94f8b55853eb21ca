package gateway

import (
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

const (
	agedASweep = 20               // of one loop in a second
	agedTime   = 30 * time.Second // that a client has for its move; nothing is closed after it
)

// askOn asks clients to move on, a few a second: those that have been here for longer
// than rebalance.max_age, and those that an evacuation brought here whose region is in
// service again. They come by the resume lane; who does not go stays, and is asked again
// an age, or rebalance.window, later.
func (l *loop) askOn() {
	e := l.edge
	most, home := e.settings().Rebalance.MaxAge, e.past.Load().home
	if most <= 0 && len(home) == 0 || l.handing != nil || !e.ready.Load() {
		return
	}
	told := 0
	var others []drain.Receiver
	for n := 0; n < len(l.slots) && told < agedASweep; n++ {
		l.aged = (l.aged + 1) % len(l.slots) // on from where the last sweep stopped
		c := l.slots[l.aged]
		if c == nil || c.closing || c.superseded || c.session == nil || !c.session.movable {
			continue
		}
		region, away := home[c.session.by]
		away = away && !c.movedOfLate()
		if !away && !c.aged(most) {
			continue
		}
		if others == nil {
			others = e.targets.Edges(0)
		}
		if told++; away {
			c.ask("home", e.targets.Draw(others, func(of string) bool { return of == region }))
		} else {
			c.ask("max_age", e.targets.Likely(others))
		}
	}
}

// aged says that a conn is older than most, give or take what its session's id says.
func (c *conn) aged(most time.Duration) bool {
	return most > 0 && c.loop.seconds()-max(c.session.since, c.session.handedAt) >= c.session.age(most)
}

// ask tells a client to go, and closes nothing if it does not. Without a url it goes by
// its own list.
func (c *conn) ask(reason, url string) {
	c.session.handedAt = max(c.loop.seconds(), 1)
	c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{
		Reason: reason, DeadlineMs: uint32(agedTime.Milliseconds()), Url: url, Ticket: c.resumeTicket(),
	}}})
	c.hinted()
}

// age is how long this session may stay: most, give or take a fifth of it, by its id.
func (s *session) age(most time.Duration) uint32 {
	return ceilSeconds(most*4/5 + most*2/5*time.Duration(s.id[0])/255)
}
