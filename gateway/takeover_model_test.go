package gateway

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/door"
	"github.com/spillway-io/spillway/gateway/leave"
	"github.com/spillway-io/spillway/gateway/load"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// model is edges without sockets, whose words to each other take their time.
type model struct {
	t        *testing.T
	edges    []*Edge
	messages []spoken // said and not yet heard
	attempts []uint64 // of each session so far
	open     []*conn
	rng      *rand.Rand
}

type spoken struct {
	to   *Edge
	text []byte
}

func newModel(t *testing.T, seed uint64, edges, sessions int) *model {
	m := &model{t: t, attempts: make([]uint64, sessions), rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range edges {
		e := &Edge{metrics: newMetrics(nil), messenger: new(party), clock: clock{born: time.Now().Add(-time.Hour)}, series: load.New(time.Now())}
		e.counts.metrics, e.takeovers.edge, e.gate = e.metrics, e, new(door.Gate)
		e.cfg = Default()
		e.cfg.ID = fmt.Sprint("edge-", i)
		e.hot.Store(newHot(e.cfg.Hot, &e.cfg))
		for id := range 2 {
			l := &loop{id: id, edge: e, now: time.Now(), leaving: new(leave.Part)}
			l.inbox.Wake = func() {}
			e.loops = append(e.loops, l)
		}
		m.edges = append(m.edges, e)
	}
	return m
}

// connect lets a session appear on a loop, often with its highest attempt, sometimes
// late with a lower one.
func (m *model) connect() {
	n := m.rng.IntN(len(m.attempts))
	l := m.loop()
	m.attempts[n] += 2
	attempt := m.attempts[n]
	resumed := attempt > 2 // the first conn of a session has no ticket
	if resumed && m.rng.IntN(4) == 0 {
		attempt -= 3 // odd ones are late; no two are equal
	}
	c := &conn{loop: l, token: uint64(len(l.slots)), session: &session{
		id: [16]byte{byte(n), 1}, attempt: attempt, stay: leave.NewStay(l.seconds()-m.rng.Uint32N(4), "", 0), order: l.edge.welcomes.Add(1),
		movable: true, resumed: resumed, claims: &auth.Claims{Subject: "ann", Critical: n%2 == 0},
	}}
	l.slots = append(l.slots, c)
	l.edge.counts.conns.Add(1)
	m.open = append(m.open, c)
	c.takeOver()
}

func (m *model) loop() *loop {
	e := m.edges[m.rng.IntN(len(m.edges))]
	return e.loops[m.rng.IntN(len(e.loops))]
}

func (m *model) close() {
	if len(m.open) == 0 {
		return
	}
	i := m.rng.IntN(len(m.open))
	c := m.open[i]
	m.open = append(m.open[:i], m.open[i+1:]...)
	c.closed = true
	c.loop.uncount(c)
	c.loop.slots[c.token] = nil
	c.loop.edge.counts.gone(c)
}

// turn lets a loop take what it was told.
func (m *model) turn(l *loop) bool {
	messages := l.inbox.Take()
	for _, message := range messages {
		message.apply(l)
	}
	return len(messages) > 0
}

// say puts an edge's batch on its way to the others.
func (m *model) say(e *Edge) {
	sessions, _ := e.takeovers.take()
	if len(sessions) == 0 {
		return
	}
	text, err := proto.Marshal(&gatewayv1.Takeovers{Edge: e.cfg.ID, Sessions: sessions})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, to := range m.edges {
		m.messages = append(m.messages, spoken{to, text})
	}
}

// hear delivers one message, not always the oldest.
func (m *model) hear() {
	if len(m.messages) == 0 {
		return
	}
	i := m.rng.IntN(len(m.messages))
	s := m.messages[i]
	m.messages = append(m.messages[:i], m.messages[i+1:]...)
	s.to.takeovers.heard(s.text)
}

// untilQuiet lets everything be said and heard, which must come to an end.
func (m *model) untilQuiet() {
	for range 100_000 {
		busy := len(m.messages) > 0
		m.hear()
		for _, e := range m.edges {
			for _, l := range e.loops {
				busy = m.turn(l) || busy
			}
			m.say(e)
		}
		if !busy && len(m.messages) == 0 {
			return
		}
	}
	m.t.Fatal("edges never stop answering each other")
}

// check compares what counts with what should: of a session's open conns at most one,
// and none with a lower attempt than another open one.
func (m *model) check() {
	counts := make(map[*Edge][2]int64)
	highest := make(map[[16]byte]uint64)
	counting := make(map[[16]byte]uint64)
	for _, c := range m.open {
		n := counts[c.loop.edge]
		if c.superseded {
			n[1]++
		} else {
			n[0]++
			if counting[c.session.id] != 0 {
				m.t.Fatalf("attempts %d and %d of one session count", counting[c.session.id], c.session.attempt)
			}
			counting[c.session.id] = c.session.attempt
		}
		counts[c.loop.edge] = n
		highest[c.session.id] = max(highest[c.session.id], c.session.attempt)
	}
	for id, attempt := range counting {
		if attempt != highest[id] {
			m.t.Fatalf("attempt %d counts, %d is open", attempt, highest[id])
		}
	}
	for _, e := range m.edges {
		if n := counts[e]; e.counts.conns.Load() != n[0] || e.counts.superseded.Load() != n[1] || e.counts.movable.Load() != n[0] {
			m.t.Fatalf("%s counts %d conns, %d superseded, %d movable, has %v", e.cfg.ID, e.counts.conns.Load(), e.counts.superseded.Load(), e.counts.movable.Load(), n)
		}
	}
}

// Whatever the order in which edges and loops hear of it, the conn that counts is
// the one with the highest attempt of those that are open, and only it.
func TestInAnyOrderTheHighestAttemptCounts(t *testing.T) {
	for seed := range uint64(300) {
		m := newModel(t, seed, 3, 4)
		for range 60 {
			switch m.rng.IntN(6) {
			case 0, 1:
				m.connect()
			case 2:
				m.close()
			case 3:
				m.turn(m.loop())
			case 4:
				m.say(m.edges[m.rng.IntN(len(m.edges))])
			case 5:
				m.hear()
			}
		}
		m.untilQuiet()
		m.check()
	}
}
