package gateway

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/presence/drain"
)

var simulated = flag.Int("clients", 1_000_000, "clients of the simulations")

// sim is a cluster in virtual time: the plans of presence/drain and the gates of
// gateway/admission are real, sockets, bus and clients are not. Clients obey as an
// SDK does; figures are a second old, messages take 5 ms, a handshake 50 to 300 ms.
type sim struct {
	rng     *rand.Rand
	start   time.Time
	now     time.Time
	edges   []*simEdge
	clients []simClient
	queue   [][]simEvent // by tick from now; a ring
	at      int
	known   []drain.Receiver // a second old
	peers   []admission.Peer
	away    int // clients that are nowhere
	back    time.Time
	waits   []time.Duration
	firsts  int // first attempts after a loss, and how many were refused
	refused int
}

type simClient struct {
	edge  int32 // where its stream is; -1: nowhere
	slot  int32 // in the edge's list
	moves int16
	tries int16
	lost  time.Duration // since when it has been nowhere
}

type simEdge struct {
	id       int
	gate     *admission.Gate
	held     []int32 // clients
	peak     int     // most admissions in any second
	second   int64
	inSecond int
	gone     bool
	plan     *drain.Plan
	began    time.Time
	told     int
	waiting  []int32 // not told yet
	took     time.Duration
}

type simEvent struct {
	at time.Time
	do func()
}

const (
	simTick = drain.Step
	simRing = 2_048 // ticks that can be planned ahead
)

func newSim(edges, clients int, settings admission.Settings) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(1, 2)), start: time.Unix(1_000_000, 0), queue: make([][]simEvent, simRing)}
	s.now = s.start
	each := clients / edges
	for i := range edges {
		e := &simEdge{id: i}
		e.gate = admission.New(settings, admission.Capacity{MaxConns: each * 3 / 2, Margin: each / 40}, "eu", s.rng, s.now)
		s.edges = append(s.edges, e)
	}
	for i := range clients {
		s.clients = append(s.clients, simClient{edge: -1})
		s.join(int32(i), s.edges[i%edges])
	}
	s.look()
	return s
}

func (s *sim) join(c int32, e *simEdge) {
	s.clients[c].edge, s.clients[c].slot = int32(e.id), int32(len(e.held))
	e.held = append(e.held, c)
}

func (s *sim) part(c int32) {
	cl := &s.clients[c]
	e := s.edges[cl.edge]
	last := e.held[len(e.held)-1]
	e.held[cl.slot], s.clients[last].slot = last, cl.slot
	e.held = e.held[:len(e.held)-1]
	cl.edge = -1
}

func (s *sim) after(d time.Duration, do func()) {
	at := s.now.Add(max(d, 0))
	tick := min(max(int(d/simTick), 1), simRing-1)
	i := (s.at + tick) % simRing
	s.queue[i] = append(s.queue[i], simEvent{at, do})
}

func (s *sim) name(i int) string { return fmt.Sprintf("e%03d", i) }

// look is what figures and membership show, once a second.
func (s *sim) look() {
	s.known, s.peers = s.known[:0:0], nil
	for i, e := range s.edges {
		if e.gone {
			continue
		}
		st := e.gate.Status(len(e.held), s.now)
		s.known = append(s.known, drain.Receiver{
			ID: s.name(i), Region: "eu", Headroom: st.Headroom, MovedPerSecond: st.MovedPerSecond, Addressed: true, Draining: e.plan != nil,
		})
		s.peers = append(s.peers, admission.Peer{ID: s.name(i), Draining: e.plan != nil})
	}
	for _, e := range s.edges {
		e.gate.See(s.peers, true, s.now)
	}
}

func (s *sim) step() {
	due := s.queue[s.at]
	s.queue[s.at] = nil
	slices.SortStableFunc(due, func(a, b simEvent) int { return a.at.Compare(b.at) })
	tick := s.now
	for _, ev := range due {
		s.now = later(ev.at, s.now)
		ev.do()
	}
	s.now = tick
	for _, e := range s.edges {
		if e.gone {
			continue
		}
		for _, d := range e.gate.Serve(nil, len(e.held), s.now) {
			s.decided(int32(d.ID-1), e, d)
		}
		if e.plan != nil {
			n := drain.Counts{Plain: len(e.waiting), Told: e.told}
			s.obey(e, e.plan.Tick(s.now, n, s.known))
		}
	}
	s.now = tick.Add(simTick)
	s.at = (s.at + 1) % simRing
	if s.now.Sub(s.start)%time.Second == 0 {
		s.look()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leave begins the drain of an edge.
func (s *sim) leave(e *simEdge, window time.Duration) {
	e.gate.SetDraining(true)
	e.began, e.told, e.waiting = s.now, 0, slices.Clone(e.held)
	e.plan = drain.New(drain.Config{Operation: "op", Edge: s.name(e.id), Region: "eu", Start: s.now, End: s.now.Add(window)})
}

func (s *sim) obey(e *simEdge, actions []drain.Action) {
	plan := e.plan
	for _, a := range actions {
		var to *simEdge
		if a.To != "" {
			var i int
			_, _ = fmt.Sscanf(a.To, "e%d", &i)
			to = s.edges[i]
		}
		switch a.Kind {
		case drain.Ask:
			s.after(5*time.Millisecond, func() {
				o := to.gate.Offer(a.Request, len(to.held), s.now)
				o.Edge = a.To
				s.after(5*time.Millisecond, func() {
					if e.plan == plan {
						s.obey(e, plan.Offer(s.now, o))
					}
				})
			})
		case drain.Confirm:
			s.after(5*time.Millisecond, func() {
				held := to.gate.Confirm(a.Keep, s.now).Held
				s.after(5*time.Millisecond, func() { plan.Confirmed(s.now, a.To, a.Keep.Number, held) })
			})
		case drain.Move:
			for i := range min(a.Count, len(e.waiting)) {
				c := e.waiting[len(e.waiting)-1]
				e.waiting = e.waiting[:len(e.waiting)-1]
				e.told++
				move := &admission.Move{Operation: "op", Edge: s.name(e.id), Until: s.now.Add(10 * time.Second)}
				target, lane := to, admission.LaneMoved
				if !a.Granted {
					target, lane = s.likely(), admission.LaneResume
				}
				at := a.First.Add(time.Duration(i) * a.Every).Sub(s.now)
				s.after(at+50*time.Millisecond+time.Duration(s.rng.Int64N(int64(250*time.Millisecond))), func() { s.arrive(c, target, lane, move) })
			}
		case drain.CloseAll:
			e.told, e.waiting = 0, nil
		}
	}
}

// likely draws an edge as one that leaves does for those without a grant.
func (s *sim) likely() *simEdge {
	for {
		if e := s.edges[s.rng.IntN(len(s.edges))]; !e.gone && e.plan == nil {
			return e
		}
	}
}

// serving draws an edge as a plain list of addresses does.
func (s *sim) serving() *simEdge {
	for {
		if e := s.edges[s.rng.IntN(len(s.edges))]; !e.gone {
			return e
		}
	}
}

func (s *sim) arrive(c int32, to *simEdge, lane admission.Lane, move *admission.Move) {
	s.clients[c].tries++
	if to.gone {
		s.again(c, to, lane, time.Duration(s.rng.Int64N(int64(time.Second))))
		return
	}
	a := admission.Arrival{ID: uint64(c) + 1, Lane: lane, Obeys: true}
	if lane == admission.LaneMoved {
		a.Move = move
	}
	s.decided(c, to, to.gate.Arrive(a, len(to.held), s.now))
}

func (s *sim) again(c int32, _ *simEdge, _ admission.Lane, after time.Duration) {
	s.after(after, func() { s.arrive(c, s.serving(), admission.LaneResume, nil) })
}

func (s *sim) decided(c int32, e *simEdge, d admission.Decision) {
	cl := &s.clients[c]
	switch d.Verdict {
	case admission.Wait:
	case admission.Refuse:
		if cl.tries == 1 {
			s.refused++
		}
		s.again(c, e, d.Lane, d.After)
	case admission.Admit:
		if cl.edge >= 0 { // make before break
			from := s.edges[cl.edge]
			from.told--
			s.part(c)
			if from.plan != nil && len(from.held) == 0 {
				from.took = s.now.Sub(from.began)
			}
		} else {
			s.away--
			s.waits = append(s.waits, s.now.Sub(s.start)-cl.lost)
			s.back = s.now
		}
		cl.moves++
		cl.tries = 0
		s.join(c, e)
		if second := s.now.Unix(); second != e.second {
			e.second, e.inSecond = second, 0
		}
		e.inSecond++
		e.peak = max(e.peak, e.inSecond)
	}
}

// restart gives back an edge that has left, empty.
func (s *sim) restart(e *simEdge) {
	e.plan = nil
	e.gate.SetDraining(false)
}

func (s *sim) peak() int {
	n := 0
	for _, e := range s.edges {
		n = max(n, e.peak)
	}
	return n
}

func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}

// simClients is fewer where a million takes too long.
func simClients(t *testing.T) int {
	if testing.Short() || raceDetector {
		return min(*simulated, 100_000)
	}
	return *simulated
}

// Ten of a hundred edges leave at once, with 25 s: nobody is refused, no edge is sent
// more than its moved lane takes, and all are gone well before the end.
func TestSimulatedDrainOfTenEdgesOfAHundred(t *testing.T) {
	t.Parallel()
	n := simClients(t)
	settings := admission.Default()
	s := newSim(100, n, settings)
	window := 22 * time.Second
	for _, e := range s.edges[:10] {
		s.leave(e, window)
	}
	for s.now.Before(s.start.Add(window)) {
		s.step()
	}
	longest, left := time.Duration(0), 0
	for _, e := range s.edges[:10] {
		longest, left = max(longest, e.took), left+len(e.held)
	}
	most := 0
	for _, e := range s.edges[10:] {
		most = max(most, len(e.held))
	}
	mean := float64(n) / 90
	t.Logf("%d clients moved in %v; most arrivals at an edge in a second: %d (lane %d); most/mean of conns %.3f; refused %d",
		n/10, longest, s.peak(), settings.MovedPerSecond, float64(most)/mean, s.refused)
	if left > 0 || s.refused > 0 {
		t.Errorf("%d are left, %d were refused", left, s.refused)
	}
	if s.peak() > settings.MovedPerSecond*11/10 {
		t.Errorf("%d arrivals in a second at one edge", s.peak())
	}
	if float64(most) > 1.05*mean {
		t.Errorf("the fullest edge has %d, the mean is %.0f", most, mean)
	}
}

// All hundred edges are restarted, five at a time: every client is moved a few times at
// most, nobody is refused.
func TestSimulatedRollingRestart(t *testing.T) {
	t.Parallel()
	n := simClients(t)
	settings := admission.Default()
	s := newSim(100, n, settings)
	window := 22 * time.Second
	left := 0
	for first := 0; first < len(s.edges); first += 5 {
		if raceDetector && first == 20 {
			break
		}
		batch := s.edges[first : first+5]
		for _, e := range batch {
			s.leave(e, window)
		}
		for end := s.now.Add(window); s.now.Before(end); {
			s.step()
		}
		for _, e := range batch {
			left += len(e.held)
			s.restart(e)
		}
		for range 40 { // two seconds until the new process is there
			s.step()
		}
	}
	moves, most := 0, 0
	for i := range s.clients {
		moves += int(s.clients[i].moves)
		most = max(most, int(s.clients[i].moves))
	}
	t.Logf("%d clients: %.2f moves each, %d at most; most arrivals at an edge in a second: %d; refused %d", n, float64(moves)/float64(n), most, s.peak(), s.refused)
	if left > 0 || s.refused > 0 {
		t.Errorf("%d were left, %d refused", left, s.refused)
	}
	if float64(moves)/float64(n) > 2 {
		t.Errorf("%.2f moves for each client", float64(moves)/float64(n))
	}
}

// Ten of a hundred edges are lost with a tenth of all clients, which come back as an
// SDK does: first within the retry window, then as they are told.
func TestSimulatedLossOfTenEdgesOfAHundred(t *testing.T) {
	t.Parallel()
	n := simClients(t)
	settings := admission.Default()
	s := newSim(100, n, settings)
	perSecond := float64(settings.ResumePerSecond * 90)
	retry := min(max(time.Duration(float64(n/100)/perSecond*float64(time.Second)), 500*time.Millisecond), 10*time.Second)
	for _, e := range s.edges[:10] {
		e.gone = true
		for _, c := range slices.Clone(e.held) {
			s.part(c)
			s.away++
			s.firsts++
			s.clients[c].lost = s.now.Sub(s.start)
			s.after(time.Duration(s.rng.Int64N(int64(retry))), func() { s.arrive(c, s.serving(), admission.LaneResume, nil) })
		}
	}
	bound := time.Duration(1.3 * float64(n/10) / perSecond * float64(time.Second))
	for s.away > 0 && s.now.Sub(s.start) < 2*time.Minute {
		s.step()
	}
	took := s.back.Sub(s.start)
	t.Logf("%d clients back in %v (1.3 n/rate: %v); outage p50 %v p95 %v p99 %v; first attempts refused %.1f %%; most admissions at an edge in a second: %d",
		s.firsts, took, bound, quantile(s.waits, 0.5), quantile(s.waits, 0.95), quantile(s.waits, 0.99), 100*float64(s.refused)/float64(s.firsts), s.peak())
	if s.away > 0 {
		t.Errorf("%d never came back", s.away)
	}
	if took > bound+6*time.Second {
		t.Errorf("it took %v", took)
	}
	if most := settings.ResumePerSecond + settings.ResumeBurst; s.peak() > most*11/10 {
		t.Errorf("%d admissions in a second at one edge, the lane gives %d", s.peak(), most)
	}
}
