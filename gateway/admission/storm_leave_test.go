package admission_test

import (
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	movedSlotLife = 10 * time.Second       // after a hint its client may come on its grant
	lookAround    = 200 * time.Millisecond // how old the picture of the others may be
)

// leaver is an edge that moves its clients away, as package gateway does it.
type leaver struct {
	*storm
	index int32
	edge  *edge
	op    string
	cfg   drain.Config
	plan  *drain.Plan

	lists  [classUnplaced + 1][]int32 // clients by class, stale ones among them
	counts [classUnplaced + 1]int
	start  time.Duration
	end    time.Duration
	over   time.Duration // everybody is gone
	view   []drain.Receiver
	viewed time.Duration

	total, old                       int // clients, and those of them that cannot move
	moved, interrupted, closed, bare int
	movedCritical, lastCritical      int // of the moves: how many critical ones, and the place of the last of them
	ordered                          int
	closes                           []int // of those who cannot move, by second
}

// leave begins a drain, or with change another operation.
func (s *storm) leave(e *edge, op string, window time.Duration, change func(*drain.Config)) *leaver {
	l := &leaver{storm: s, index: int32(len(s.leavers)), edge: e, op: op, start: s.now, end: s.now + window}
	s.leavers = append(s.leavers, l)
	l.cfg = drain.Config{Operation: op, Edge: e.id, Incarnation: 1, Region: e.region, Start: e.clock(), End: e.clock().Add(window)}
	if change != nil {
		change(&l.cfg)
	}
	l.plan = drain.New(l.cfg)
	l.viewed = -time.Hour
	l.closes = make([]int, int(window/time.Second)+1)
	e.shut()
	e.leaving = l
	for i := range s.clients {
		if s.clients[i].edge == e.index {
			l.enlist(int32(i))
		}
	}
	s.push(event{at: s.now, kind: evTick, who: l.index})
	return l
}

// enlist takes in a client that is here, or comes late.
func (l *leaver) enlist(who int32) {
	l.total++
	switch c := &l.clients[who]; {
	case c.policy != sdk:
		l.old++
		l.file(who, classUnmovable)
	case c.critical:
		l.file(who, classCritical)
	default:
		l.file(who, classMovable)
	}
}

func (l *leaver) file(who int32, k class) {
	l.unfile(who)
	l.clients[who].class = k
	l.counts[k]++
	l.lists[k] = append(l.lists[k], who)
}

func (l *leaver) unfile(who int32) {
	c := &l.clients[who]
	if c.class != classNone {
		l.counts[c.class]--
		c.class = classNone
	}
}

// pop takes a client of a class that is still here, the oldest first; -1: none is.
func (l *leaver) pop(k class) int32 {
	for len(l.lists[k]) > 0 {
		who := l.lists[k][0]
		l.lists[k] = l.lists[k][1:]
		if c := &l.clients[who]; c.edge == l.edge.index && c.class == k {
			return who
		}
	}
	return -1
}

func (l *leaver) tick() {
	remaining := 0
	for _, n := range l.counts {
		remaining += n
	}
	if l.over > 0 || !l.edge.alive {
		return
	}
	now := l.edge.clock()
	if remaining == 0 {
		l.over = l.now
		l.obey(l.plan.Stop(now))
		return
	}
	counts := drain.Counts{
		Critical: l.counts[classCritical], Movable: l.counts[classMovable], Unmovable: l.counts[classUnmovable], Hinted: l.counts[classHinted],
	}
	l.obey(l.plan.Tick(now, counts, l.receivers()))
	if l.now >= l.end {
		l.over = l.now
		return
	}
	l.push(event{at: l.now + drain.Step, kind: evTick, who: l.index})
}

// receivers are the others as membership and the last figures show them.
func (l *leaver) receivers() []drain.Receiver {
	if l.now-l.viewed < lookAround {
		return l.view
	}
	l.viewed, l.view = l.now, l.view[:0]
	for _, e := range l.edges {
		if there, draining := e.seen(); there && e != l.edge {
			l.view = append(l.view, drain.Receiver{
				ID: e.id, Region: e.region, Headroom: e.headroom, MovedPerSecond: e.moved, Addressed: true, Draining: draining,
			})
		}
	}
	return l.view
}

func (l *leaver) obey(actions []drain.Action) {
	for _, a := range actions {
		switch a.Kind {
		case drain.Ask, drain.Confirm:
			l.ask(a)
		case drain.Move:
			l.tell(a)
		case drain.Close:
			for i := range a.Count {
				if who := l.pop(classUnmovable); who >= 0 {
					l.closes[min(int((l.now-l.start)/time.Second), len(l.closes)-1)]++
					l.unfile(who)
					l.closeAt(who, a.First.Add(time.Duration(i)*a.Every))
				}
			}
		case drain.CloseHinted:
			for range a.Count {
				l.shutOut(l.pop(classHinted))
			}
		case drain.CloseAll:
			for k := classCritical; k <= classUnplaced; k++ {
				for who := l.pop(k); who >= 0; who = l.pop(k) {
					l.shutOut(who)
				}
			}
		case drain.Recall:
			for _, who := range l.lists[classHinted] {
				if c := &l.clients[who]; c.edge == l.edge.index && c.class == classHinted && c.target == l.byID[a.To].index {
					l.file(who, classMovable)
				}
			}
		}
	}
}

// shutOut closes the conn of a client that is still here.
func (l *leaver) shutOut(who int32) {
	if who < 0 {
		return
	}
	c := &l.clients[who]
	if c.policy == sdk {
		l.interrupted++
	} else {
		l.closed++
	}
	l.unfile(who)
	l.edge.conns--
	l.lost(who)
}

func (l *leaver) closeAt(who int32, at time.Time) {
	l.after(max(at.Sub(l.edge.clock()), 0), func() {
		if l.clients[who].edge == l.edge.index {
			l.shutOut(who)
		}
	})
}

// tell has clients read `reconnect` when their slots have come.
func (l *leaver) tell(a drain.Action) {
	target := int32(-1)
	if a.To != "" {
		e := l.byID[a.To]
		target = e.index
		const late = hearsDrain + lookAround + drain.Step
		if e.draining && e.now-e.since > late || !e.alive && e.now-e.died > hearsDeath+late {
			l.misled++
		}
	}
	for i := range a.Count {
		k := classCritical
		who := l.pop(k)
		if who < 0 {
			k = classMovable
			who = l.pop(k)
		}
		if who < 0 {
			return
		}
		l.ordered++
		if k == classCritical {
			l.movedCritical++
			l.lastCritical = l.ordered
		}
		c := &l.clients[who]
		at := max(a.First.Add(time.Duration(i)*a.Every).Sub(l.edge.clock()), 0)
		to := classHinted
		if !a.Granted {
			to = classUnplaced
			l.bare++
			l.push(event{at: l.now + at + a.Grace, kind: evGrace, who: who, attempt: uint32(l.index)})
		}
		l.file(who, to)
		c.target, c.slotEnd = target, l.edge.clock().Add(at+movedSlotLife)
		l.push(event{at: l.now + at + l.oneWay(), kind: evTold, who: who, attempt: uint32(l.index)})
	}
}

func (s *storm) told(who int32, leaver uint32) {
	c := &s.clients[who]
	if c.edge != s.leavers[leaver].edge.index || c.class != classHinted && c.class != classUnplaced {
		return
	}
	c.leaver, c.hint, c.tries, c.hasPass = int32(leaver)+1, c.target, 0, false
	if c.trying >= 0 {
		return // an attempt goes on; if it fails the new hint holds
	}
	s.dialIn(who, 0)
	c.hint = c.target
}

// moves: the client is connected elsewhere.
func (l *leaver) moves(who int32) {
	l.moved++
	l.unfile(who)
}

func (s *storm) graceOver(who int32, leaver uint32) {
	l := s.leavers[leaver]
	if c := &s.clients[who]; c.edge == l.edge.index && c.class == classUnplaced {
		l.shutOut(who)
	}
}

func (s *storm) leftOld(at int32, _ uint32) { s.edges[at].conns-- }

// ask carries a question over the bus and the answer back, unless it is lost.
func (l *leaver) ask(a drain.Action) {
	to := l.byID[a.To]
	bus := func() time.Duration { return l.between(time.Millisecond, 10*time.Millisecond) }
	arrives := func() bool { return l.rand.Float64() >= l.lostCalls }
	if !arrives() {
		return
	}
	l.after(bus(), func() {
		if !to.alive {
			return
		}
		switch back := arrives(); a.Kind {
		case drain.Ask:
			offer := to.gate.Offer(a.Request, to.conns, to.clock())
			answer := &gatewayv1.GrantOffer{
				Operation: offer.Operation, Edge: to.id, Number: offer.Number, Movable: offer.Movable, Unmovable: offer.Unmovable,
				MovablePerSecond: offer.MovablePerSecond, UnmovablePerSecond: offer.UnmovablePerSecond, StartMs: offer.StartMs, Reason: offer.Reason,
			}
			to.offered(a.Request, offer)
			if back {
				l.after(bus(), func() { l.obey(l.plan.Offer(l.edge.clock(), answer)) })
			}
		default:
			held := to.gate.Confirm(a.Keep, to.clock()).Held
			if held {
				to.keeps(a.Keep)
			}
			if back {
				l.after(bus(), func() { l.plan.Confirmed(l.edge.clock(), a.To, a.Keep.Number, held) })
			}
		}
	})
}
