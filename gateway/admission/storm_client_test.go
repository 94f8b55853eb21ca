package admission_test

import (
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

const handshakeTimeout = 5 * time.Second // old clients'

// policy is how a client comes back.
type policy uint8

const (
	sdk       policy = iota // protocol.md, "What every SDK does"
	everySec                // each second for ever, no jitter, no ticket
	everyFive               // each five seconds
)

func (p policy) String() string { return [...]string{"sdk", "fixed 1 s", "fixed 5 s"}[p] }

func (p policy) obeys() bool { return p == sdk }

func (p policy) interval() time.Duration {
	if p == everyFive {
		return 5 * time.Second
	}
	return time.Second
}

// class is what can be done with a client of an edge that leaves.
type class uint8

const (
	classNone class = iota
	classCritical
	classMovable
	classUnmovable
	classHinted
	classUnplaced // told without a grant
)

// client is one of a million.
type client struct {
	policy   policy
	class    class
	ticket   bool // has one: comes by the resume lane
	critical bool
	admitted bool // by the edge that it tries
	hasPass  bool
	down     bool // was lost, and is not back
	failures uint8
	tries    uint8 // since it was lost or told

	edge    int32 // that it is connected to; -1: none
	trying  int32 // that its attempt is at; -1: none is under way
	hint    int32 // edge for the next attempt; -1: as the balancer draws
	home    int32 // an edge of the region whose balancer it asks
	leaver  int32 // 1 + that told it to move; 0: none
	target  int32 // that it was told
	attempt uint32
	dialed  time.Duration
	lostAt  time.Duration
	cameAt  time.Duration // back
	slotEnd time.Time     // of its moved ticket
	pass    admission.Pass
}

// lost: its conn is gone.
func (s *storm) lost(who int32) {
	c := &s.clients[who]
	if c.edge < 0 {
		return
	}
	from := s.edges[c.edge]
	c.edge, c.lostAt, c.down = -1, s.now, true
	s.out++
	s.displaced++
	c.class = classNone
	if c.trying >= 0 {
		return // an attempt to move is under way
	}
	c.tries, c.hint, c.hasPass = 0, -1, false
	wait := c.policy.interval()
	if c.policy == sdk {
		wait = s.between(0, max(from.window, 500*time.Millisecond))
	}
	s.dialIn(who, wait+s.oneWay())
}

func (s *storm) dialIn(who int32, d time.Duration) {
	c := &s.clients[who]
	c.attempt++
	c.trying = -1
	s.push(event{at: s.now + d, kind: evDial, who: who, attempt: c.attempt})
}

func (s *storm) dial(who int32, attempt uint32) {
	c := &s.clients[who]
	if c.attempt != attempt {
		return
	}
	c.tries += min(1, 255-c.tries)
	s.attempts++
	at := c.hint
	if at < 0 {
		at = s.drawn(s.edges[c.home].region)
	}
	if at < 0 {
		s.failed(who)
		return
	}
	c.trying, c.hint, c.dialed, c.admitted = at, -1, s.now, false
	s.push(event{at: s.now + s.oneWay(), kind: evArrive, who: who, attempt: attempt})
}

func (s *storm) arrive(who int32, attempt uint32) {
	c := &s.clients[who]
	if c.attempt != attempt {
		return
	}
	e := s.edges[c.trying]
	if !e.alive {
		s.failed(who)
		return
	}
	a := admission.Arrival{ID: uint64(attempt)<<32 | uint64(uint32(who)), Lane: admission.LaneFresh, Obeys: c.policy.obeys()}
	if c.ticket {
		a.Lane = admission.LaneResume
	}
	if c.leaver > 0 && c.target == e.index {
		l := s.leavers[c.leaver-1]
		a.Lane = admission.LaneMoved
		a.Move = &admission.Move{Operation: l.op, Edge: l.edge.id, Until: c.slotEnd}
	}
	if c.hasPass {
		pass := c.pass
		a.Pass = &pass
		s.passShown()
	}
	s.arrival()
	e.decide(e.gate.Arrive(a, e.conns, e.clock()))
}

// refused reads `busy`, or a 503.
func (s *storm) refused(who int32, e *edge, d admission.Decision) {
	c := &s.clients[who]
	s.refusals++
	if c.tries == 1 && c.down {
		s.refusedFirst++
	}
	if !c.policy.obeys() {
		s.dialIn(who, s.oneWay()+c.policy.interval())
		return
	}
	late := s.oneWay()
	early := d.Cause == admission.CauseEarly
	if !d.Slot.IsZero() {
		if !early {
			c.pass.Nonce = s.rand.Uint64()
		}
		c.pass.Slot = d.Slot
		s.slots++
	}
	c.hasPass = !d.Slot.IsZero()
	switch {
	case d.Elsewhere && !s.oneURL:
		c.hint = s.byHeadroom(e)
	case c.hasPass && !s.oneURL: // a slot of that edge's
		c.hint = e.index
	case c.leaver > 0 && c.edge >= 0: // a hint that is busy is followed again
		c.hint = e.index
	}
	s.dialIn(who, late+d.After)
}

// byHeadroom draws another edge of the region as edges do for their hints.
func (s *storm) byHeadroom(but *edge) int32 {
	total, at := 0, int32(-1)
	for _, e := range s.edges {
		there, draining := e.seen()
		if e == but || !there || draining || e.region != but.region || e.headroom <= 0 {
			continue
		}
		if total += e.headroom; s.rand.IntN(total) < e.headroom {
			at = e.index
		}
	}
	return at
}

// failed: the attempt came to nothing that could be read.
func (s *storm) failed(who int32) {
	c := &s.clients[who]
	if c.policy != sdk {
		s.dialIn(who, c.policy.interval())
		return
	}
	wait := s.between(0, min(30*time.Second, 500*time.Millisecond<<min(c.failures, 6)))
	c.failures++
	c.hasPass = false
	s.dialIn(who, wait)
}

// giveUp: the handshake took too long.
func (s *storm) giveUp(who int32, attempt uint32) {
	c := &s.clients[who]
	if c.attempt != attempt || c.trying < 0 || c.policy == sdk {
		return
	}
	if !c.admitted { // else the edge finds out when it has done the work
		s.edges[c.trying].gate.Gone(uint64(attempt)<<32 | uint64(uint32(who)))
	}
	s.gaveUp++
	s.dialIn(who, c.policy.interval())
}

func (s *storm) connected(who int32, attempt uint32) {
	c := &s.clients[who]
	if c.attempt != attempt || c.trying < 0 {
		return
	}
	e := s.edges[c.trying]
	old := c.edge
	c.trying, c.hasPass, c.failures = -1, false, 0
	if !e.alive {
		s.failed(who)
		return
	}
	c.attempt++ // a later event of this attempt finds nobody
	if c.down {
		c.down = false
		s.out--
		s.back(c)
	}
	if old >= 0 { // make before break: it closes the old one when it has taken over
		s.leavers[c.leaver-1].moves(who)
		s.push(event{at: s.now + s.between(50*time.Millisecond, 500*time.Millisecond), kind: evLeft, who: old, attempt: uint32(c.leaver)})
	}
	c.edge, c.leaver, c.class = e.index, 0, classNone
	if e.leaving != nil {
		e.leaving.enlist(who)
	}
}
