package leave

import (
	"time"

	"github.com/spillway-io/spillway/presence/drain"
)

const (
	agedASweep = 20               // of one loop in a second
	agedTime   = 30 * time.Second // that a client has for its move; nothing is closed after it
)

// AskOn asks clients to move on, a few a second: those that have been here for longer
// than rebalance.max_age, and those that an evacuation brought here whose region is in
// service again. They come by the resume lane; who does not go stays, and is asked again
// an age, or rebalance.window, later. The loop calls it once a second.
func (p *Part) AskOn() {
	g := p.governor
	most, home := g.deps.Settings().Rebalance.MaxAge, g.past.Load().home
	if most <= 0 && len(home) == 0 || p.current != nil || !g.deps.Edge.Ready() {
		return
	}
	asked := 0
	var others []drain.Receiver
	slots := p.conns.Slots()
	for n := 0; n < slots && asked < agedASweep; n++ {
		p.asked = (p.asked + 1) % slots // on from where the last sweep stopped
		c := p.conns.At(p.asked)
		if c == nil {
			continue
		}
		if kind := c.Kind(); kind != Movable && kind != Critical {
			continue
		}
		region, away := home[c.Stay().by]
		away = away && !p.MovedOfLate(c)
		if !away && !p.aged(c, most) {
			continue
		}
		if others == nil {
			others = g.deps.Targets.Edges(0)
		}
		if asked++; away {
			p.ask(c, "home", g.deps.Targets.Draw(others, func(of string) bool { return of == region }))
		} else {
			p.ask(c, "max_age", g.deps.Targets.Likely(others))
		}
	}
}

// aged says that a conn is older than most, give or take a fifth by its session's id.
func (p *Part) aged(c Conn, most time.Duration) bool {
	if most <= 0 {
		return false
	}
	s := c.Stay()
	_, now := p.conns.Now()
	return now-max(s.Since, s.asked) >= ceilSeconds(most*4/5+most*2/5*time.Duration(s.seed)/255)
}

// ask tells a client to go, and closes nothing if it does not. Without a url it goes by
// its own list.
func (p *Part) ask(c Conn, reason, url string) {
	_, now := p.conns.Now()
	c.Stay().askedNow(now)
	c.Hint(Hint{Reason: reason, Deadline: agedTime, URL: url})
}
