package loadgen

import "testing"

// Clients that are sent away come back when they are told, whatever their policy says,
// and what they wait for counts from then.
func TestClientsStayAwayUntilTheyAreBroughtBack(t *testing.T) {
	s := serve(t, func(p *peer) {
		if p.number > 0 {
			p.welcome("b", "T2", 4)
			p.events("chat:1", 3, 4)
			return
		}
		p.welcome("a", "T1", 0)
		p.events("chat:1", 1, 2)
	})
	g := generate(t, s, func(c *Config) { c.Policy = Policy{Kind: "sdk"} })
	g.until("two events", func(r *Report) bool { return r.Total.Deliveries == 2 })
	g.tell(command{Cmd: cmdAway})
	g.next(lineMarked)
	g.next(lineStatus)
	r := g.until("away", func(r *Report) bool { return r.Up == 0 })
	if r.Total.Attempts != 1 || r.Causes["away"] != 1 || r.Total.Interrupted != 1 {
		t.Errorf("%+v %v", r.Total, r.Causes)
	}
	g.tell(command{Cmd: cmdBack, N: 1})
	g.next(lineMarked)
	r = g.until("four events", func(r *Report) bool { return r.Total.Deliveries == 4 })
	if c := r.Total; !c.Clean() || c.CaughtUp != 1 || c.Offered != 1 || c.Attempts != 2 {
		t.Errorf("%+v", c)
	}
	if r.Outage.Count() != 1 || r.CaughtUp.Count() != 1 {
		t.Errorf("outage %v, caught up %v of %v", r.Outage.Max(), r.CaughtUp.Max(), r.PhaseTime)
	}
}
