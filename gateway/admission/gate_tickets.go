package admission

import "time"

// Passes and moved tickets are good once: at this edge at once, in its region as soon
// as the edge that has used one has told the others (Decision.Spent, Gate.Spent). Who
// shows it a second time is a newcomer of its lane, never worse. What is told late or
// never leaves it good where it was not heard.

// takeGrant looks for the place of a moved client; nil: there is none, or its ticket
// was used.
func (g *Gate) takeGrant(w *waiter, now time.Time) *grant {
	m := w.arrival.Move
	if m == nil || !m.Until.IsZero() && now.After(m.Until.Add(grantGrace)) || g.spent.kind(m.Mark) != usedNot {
		return nil
	}
	grant := g.grants.take(m, now)
	if grant != nil {
		g.hold(w, m.Mark, now)
	}
	return grant
}

// showPass looks at the pass of w; early: it is not good yet and keeps its slot.
func (g *Gate) showPass(w *waiter, now time.Time) (early bool) {
	p := w.arrival.Pass
	if p == nil || w.lane == LaneMoved {
		return false
	}
	const skew = 500 * time.Millisecond // clocks of edges differ
	if now.Before(p.Slot.Add(-skew)) {
		return p.Slot.Sub(now) <= Horizon
	}
	if now.After(p.Slot.Add(PassLife)) || g.spent.kind(p.Nonce) != usedNot {
		return false // a newcomer
	}
	g.hold(w, p.Nonce, now)
	w.pass = true
	l := &g.lanes[w.lane]
	l.slots.turn(now)
	l.slots.shown++
	return false
}

// early tells the slot of a pass again.
func early(w *waiter, now time.Time) Decision {
	slot := w.arrival.Pass.Slot
	return Decision{ID: w.arrival.ID, Lane: w.lane, Cause: CauseEarly, After: slot.Sub(now), Slot: slot}
}

// hold keeps the ticket that w shows from being shown again until it is used or put
// back. Mark 0 is none.
func (g *Gate) hold(w *waiter, m uint64, now time.Time) {
	if m != 0 {
		w.mark = m
		g.spent.set(m, usedHeld, now)
	}
}

// use ends w's ticket; what it returns is for the other edges, 0: nothing. A moved
// ticket with a target is good nowhere else.
func (g *Gate) use(w *waiter, now time.Time) uint64 {
	if w.mark == 0 {
		return 0
	}
	g.spent.set(w.mark, usedHere, now)
	if w.grant != nil && !w.arrival.Move.Anywhere {
		return 0
	}
	return w.mark
}

// putBack leaves w's place to others and its ticket good: it was not admitted.
func (g *Gate) putBack(w *waiter) {
	g.grants.giveBack(w.grant)
	w.grant = nil
	if w.mark != 0 && g.spent.kind(w.mark) == usedHeld {
		g.spent.unset(w.mark)
	}
	w.mark = 0
}

// Spent takes what another edge of the region has told: a ticket was used there. twice:
// here too, before that was known.
func (g *Gate) Spent(mark uint64, now time.Time) (twice bool) {
	was := g.spent.kind(mark)
	g.spent.set(mark, usedElsewhere, now)
	return was == usedHere
}

// demote makes a newcomer of a waiting client whose ticket was used elsewhere
// meanwhile, in the place that it would have had as one.
func (g *Gate) demote(w *waiter) bool {
	if w.mark == 0 || g.spent.kind(w.mark) != usedElsewhere {
		return false
	}
	w.list.remove(w)
	g.putBack(w)
	w.pass = false
	if w.lane == LaneMoved {
		w.lane = LaneResume
	}
	g.lanes[w.lane].waiting.insert(w)
	return true
}
