package loadgen

import (
	"context"
	"time"
)

// sendAway closes every connection. Nobody comes back by itself, whatever the policy
// says, until bringBack.
func (l *loop) sendAway() {
	l.away = true
	for i := range l.clients[:l.begun] {
		c := &l.clients[i]
		for k := c.conns; k != nil; k = c.conns {
			l.connLost(k, CauseAway)
		}
		c.machine.Schedule(l.time().Add(never))
		l.sleep(c)
	}
}

// bringBack lets all who are away come back within a window, each in a moment of its
// own that is drawn evenly. Their outages count from that moment.
func (l *loop) bringBack(window time.Duration) {
	l.away = false
	for i := range l.clients[:l.begun] {
		c := &l.clients[i]
		if c.conns != nil || c.gone {
			continue
		}
		due := l.now + int64(l.random(window))
		c.first, c.outage = true, due
		c.machine.Schedule(l.start.Add(time.Duration(due)))
		l.sleep(c)
	}
}

// Away has all clients lose their connections and stay away until Back.
func (p *Parent) Away(ctx context.Context) error {
	return p.tellAll(ctx, command{Cmd: cmdAway})
}

// Back has all clients that are away come back in the course of the window. Outage
// and CaughtUp then count from each client's own moment.
func (p *Parent) Back(ctx context.Context, window time.Duration) error {
	return p.tellAll(ctx, command{Cmd: cmdBack, N: int(window / time.Millisecond)})
}

func (p *Parent) tellAll(ctx context.Context, cmd command) error {
	for _, c := range p.children {
		if _, err := p.ask(ctx, c, cmd, lineMarked); err != nil {
			return err
		}
	}
	return nil
}
