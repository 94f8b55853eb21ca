// A storm is a hundred edges and up to a million clients in virtual time: the real
// gates and the real drain plans of production, driven as package gateway drives them,
// by an event queue and seeded randomness. No goroutine, no clock, no sleep: what it
// shows, it shows again.
//
//	storm_queue_test.go    what happens when
//	storm_edge_test.go     a gate, its clock, and the cost of a handshake
//	storm_client_test.go   clients: the SDK's policy, and old ones
//	storm_leave_test.go    an edge that moves its clients
//	storm_measure_test.go  time until all are back, fairness, twins of the promises
//
// Modelled: 5 to 50 ms each way, a balancer that draws blindly and sees a dead edge
// late, clocks of edges that differ, load figures each second, membership that hears of
// a drain after 100 ms and of a death after 3 s, a bus of 1 to 10 ms. Left out: TLS,
// frames, subscriptions.
package admission_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

var million = flag.Bool("million", false, "storms of 10,000 clients an edge instead of 1,000")

// small is n, or a part of it under the race detector: a storm has one goroutine, so that
// finds nothing in it and costs ten times.
func small(n, part int) int {
	if raceDetector {
		return part
	}
	return n
}

// perEdge is how many clients each edge holds at the start.
func perEdge() int {
	if *million {
		return 10_000
	}
	return 1_000
}

// scaled are the default settings for so many clients an edge, 10,000 being the whole:
// times stay as they are in production.
func scaled(perEdge int) admission.Settings {
	s := admission.Default()
	part := func(n int) int { return max(n*perEdge/10_000, 1) }
	s.FreshPerSecond, s.FreshBurst = part(s.FreshPerSecond), part(s.FreshBurst)
	s.ResumePerSecond, s.ResumeBurst = part(s.ResumePerSecond), part(s.ResumeBurst)
	s.MovedPerSecond, s.CriticalReserve = part(s.MovedPerSecond), part(s.CriticalReserve)
	return s
}

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// storm is the world. Times are since its start.
type storm struct {
	t     testing.TB
	rand  *rand.Rand
	now   time.Duration
	queue queue
	calls []func() // what evCall events do; free ones are nil
	free  []int32

	edges   []*edge
	byID    map[string]*edge
	clients []client
	leavers []*leaver
	figures

	// what can be set before the first event
	cost      time.Duration // of a handshake at its edge, one at a time; 0: none
	reset     time.Duration // from a death to when the balancer sees it
	lostCalls float64       // part of the bus's messages that do not arrive
	favour    float64       // part of the clients that the balancer sends to the first edge besides; 0: none
	alone     bool          // edges do not hear each other's backlogs
	oneURL    bool          // edges have no addresses: clients come by the balancer only
}

// newStorm makes n edges of each region, which hold so many clients of a policy.
func newStorm(t testing.TB, seed uint64, set admission.Settings, room admission.Capacity, n int, regions ...string) *storm {
	s := &storm{t: t, rand: rand.New(rand.NewPCG(seed, 99)), byID: make(map[string]*edge), reset: 5 * time.Second}
	for _, region := range regions {
		for i := range n {
			e := &edge{
				storm: s, index: int32(len(s.edges)), id: fmt.Sprintf("%s-%03d", region, i), region: region,
				offset: time.Duration(s.rand.IntN(400)-200) * time.Millisecond, alive: true, listed: true,
			}
			e.setUp(set, room, n)
			s.edges = append(s.edges, e)
			s.byID[e.id] = e
			s.push(event{at: s.between(0, time.Second), kind: evFigure, who: e.index})
			s.push(event{at: s.between(0, 100*time.Millisecond), kind: evCompare, who: e.index})
		}
	}
	return s
}

// fill puts n clients on each edge of a region; one of critical (0: none) is critical.
func (s *storm) fill(region string, n int, p policy, critical int) {
	for _, e := range s.edges {
		if e.region != region {
			continue
		}
		for i := range n {
			c := client{policy: p, edge: e.index, trying: -1, hint: -1, home: e.index, class: classNone}
			c.critical = critical > 0 && i%critical == 0
			c.ticket = p == sdk
			s.clients = append(s.clients, c)
			e.conns++
		}
	}
}

func (s *storm) run(until time.Duration) {
	for len(s.queue) > 0 && s.queue[0].at <= until {
		e := s.queue.pop()
		s.now = e.at
		s.happens(e)
	}
	s.now = until
}

// untilBack runs until all displaced clients are back, or the time is over.
func (s *storm) untilBack(most time.Duration) {
	until := s.now + most
	for s.out > 0 && s.now < until {
		s.run(s.now + 50*time.Millisecond)
	}
}

func (s *storm) happens(e event) {
	switch e.kind {
	case evDial:
		s.dial(e.who, e.attempt)
	case evArrive:
		s.arrive(e.who, e.attempt)
	case evGiveUp:
		s.giveUp(e.who, e.attempt)
	case evConnected:
		s.connected(e.who, e.attempt)
	case evDone:
		s.edges[e.who].done()
	case evServe:
		s.edges[e.who].serve()
	case evFigure:
		s.edges[e.who].figure()
	case evCompare:
		s.edges[e.who].compare()
	case evTick:
		s.leavers[e.who].tick()
	case evTold:
		s.told(e.who, e.attempt)
	case evGrace:
		s.graceOver(e.who, e.attempt)
	case evLeft:
		s.leftOld(e.who, e.attempt)
	case evCall:
		do := s.calls[e.who]
		s.calls[e.who] = nil
		s.free = append(s.free, e.who)
		do()
	}
}

func (s *storm) between(least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return least + time.Duration(s.rand.Int64N(int64(most-least)))
}

// oneWay is between a client and an edge.
func (s *storm) oneWay() time.Duration { return s.between(5*time.Millisecond, 50*time.Millisecond) }

// drawn is the edge that a balancer draws for a client of a region; -1: none is up.
func (s *storm) drawn(region string) int32 {
	if s.favour > 0 && s.rand.Float64() < s.favour {
		return 0
	}
	n := 0
	at := int32(-1)
	for range 8 { // most edges are listed: a few draws find one
		if e := s.edges[s.rand.IntN(len(s.edges))]; e.listed && e.region == region {
			return e.index
		}
	}
	for _, e := range s.edges {
		if e.listed && e.region == region {
			if n++; s.rand.IntN(n) == 0 {
				at = e.index
			}
		}
	}
	return at
}

// kill ends an edge without a word.
func (s *storm) kill(e *edge) {
	e.alive, e.died = false, s.now
	s.after(s.reset, func() { e.listed = false })
	for i := range s.clients {
		c := &s.clients[i]
		if c.trying == e.index {
			s.failed(int32(i))
		}
		if c.edge == e.index {
			s.lost(int32(i))
		}
	}
	e.conns = 0
}

// cut ends every conn and no edge.
func (s *storm) cut() {
	for _, e := range s.edges {
		e.conns = 0
	}
	for i := range s.clients {
		s.lost(int32(i))
	}
}
