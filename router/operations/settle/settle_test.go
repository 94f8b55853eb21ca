package settle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// sim is a region told by its edges, in virtual time: what happened at an edge is
// put in with at, what its figures say of it follows by itself.
type sim struct {
	t       *testing.T
	tracker *Tracker
	rand    *rand.Rand
	now     time.Time
	edges   map[string]*simEdge
	news    News
	lose    float64 // of the figures
	order   bool    // windows of a figure in any order
}

type simEdge struct {
	id, region string
	skew       time.Duration
	seq        uint64
	inc        uint64
	conns      int
	catching   int
	dead       bool
	windows    map[int64]*gatewayv1.Window // by its own clock
}

// the first moment of every simulation, the start of a window
var origin = time.UnixMilli(1_800_000_000_000)

func newSim(t *testing.T, edges ...string) *sim {
	s := &sim{t: t, tracker: New(), rand: rand.New(rand.NewPCG(1, 2)), now: origin, edges: map[string]*simEdge{}}
	for _, id := range edges {
		s.edges[id] = &simEdge{id: id, region: "eu", inc: 1, conns: 1000, windows: map[int64]*gatewayv1.Window{}}
	}
	return s
}

// at is the present window of an edge.
func (s *sim) at(edge string) *gatewayv1.Window {
	e := s.edges[edge]
	n := number(s.now.Add(e.skew))
	w := e.windows[n]
	if w == nil {
		w = &gatewayv1.Window{StartMs: uint64(n) * windowMS}
		e.windows[n] = w
	}
	return w
}

// resume lets n clients come to an edge with tickets of another.
func (s *sim) resume(edge, from string, n int) {
	if n == 0 {
		return
	}
	w := s.at(edge)
	w.Resumed += uint32(n)
	w.CaughtUp += uint32(n)
	if w.From == nil {
		w.From = map[string]uint32{}
	}
	w.From[from] += uint32(n)
	s.edges[edge].conns += n
}

func (s *sim) fresh(edge string, n int) {
	w := s.at(edge)
	w.Fresh += uint32(n)
	w.CaughtUp += uint32(n)
}

// run goes on for a time; each window calls do first.
func (s *sim) run(d time.Duration, do func(since time.Duration)) {
	for began := s.now; s.now.Sub(began) < d; {
		if do != nil {
			do(s.now.Sub(began))
		}
		s.now = s.now.Add(windowMS * time.Millisecond)
		if s.now.Sub(origin)%time.Second == 0 {
			s.figures()
		}
	}
}

func (s *sim) figures() {
	for _, id := range slices.Sorted(func(yield func(string) bool) {
		for id := range s.edges {
			if !yield(id) {
				return
			}
		}
	}) {
		e := s.edges[id]
		if e.dead {
			continue
		}
		e.seq++
		end := number(s.now.Add(e.skew))
		f := &gatewayv1.LoadFigure{
			Id: id, Role: gatewayv1.Role_ROLE_EDGE, Incarnation: e.inc, Region: e.region, Seq: e.seq,
			Conns: uint64(e.conns), CatchingUp: uint64(e.catching),
		}
		for n := end - 15; n < end; n++ {
			if w := e.windows[n]; w != nil {
				f.Windows = append(f.Windows, proto.CloneOf(w))
			} else if n == end-1 {
				f.Windows = append(f.Windows, &gatewayv1.Window{StartMs: uint64(n) * windowMS})
			}
		}
		if s.rand.Float64() < s.lose && e.seq%3 != 0 {
			continue
		}
		if s.order {
			s.rand.Shuffle(len(f.Windows), func(i, j int) { f.Windows[i], f.Windows[j] = f.Windows[j], f.Windows[i] })
		}
		s.tracker.Hear(f, s.now.Add(time.Duration(s.rand.IntN(20))*time.Millisecond))
	}
	s.step()
}

func (s *sim) step() {
	n := s.tracker.Step(s.now)
	s.news.Settled = append(s.news.Settled, n.Settled...)
	s.news.Lapsed = append(s.news.Lapsed, n.Lapsed...)
	s.news.Unsettled = append(s.news.Unsettled, n.Unsettled...)
}

func (s *sim) one() *routerv1.Incident {
	s.t.Helper()
	all := s.tracker.Incidents("eu")
	if len(all) != 1 {
		s.t.Fatalf("%d incidents, want one: %v", len(all), all)
	}
	return all[0]
}

func after(i *routerv1.Incident) time.Duration {
	return time.Duration(i.SettledMs-i.StartMs) * time.Millisecond
}

func (s *sim) since(ms uint64) time.Duration { return time.UnixMilli(int64(ms)).Sub(origin) }

func (s *sim) usual(perSecond int, edges ...string) func(time.Duration) {
	i := 0
	return func(time.Duration) {
		for _, e := range edges {
			s.fresh(e, (i*perSecond/5+perSecond/5)-i*perSecond/5)
		}
		i++
	}
}

func TestFlatRegionHasNoIncident(t *testing.T) {
	s := newSim(t, "a", "b")
	s.run(12*time.Minute, func(time.Duration) {
		for _, e := range []string{"a", "b"} {
			s.fresh(e, s.rand.IntN(20))
			s.at(e).Lost += uint32(s.rand.IntN(9)) // up to 90 a second of 2,000, of which 50 are too many
			if s.at(e).Lost > 4 {
				s.at(e).Lost = 4
			}
		}
	})
	if all := s.tracker.Incidents(""); len(all) != 0 {
		t.Errorf("incidents: %v", all)
	}
}

// kill loses edge a with 1,000 conns after seven minutes; its clients come back to b
// at a rate.
func kill(s *sim, rate int) {
	s.run(7*time.Minute, s.usual(20, "b"))
	s.edges["a"].dead = true
	left, usual := 1000, s.usual(20, "b")
	s.run(3*time.Minute, func(since time.Duration) {
		usual(since)
		if since == 4*time.Second {
			s.tracker.Gone("a", 1, false, s.now)
		}
		if n := min(left, rate/5); since >= time.Second && n > 0 {
			s.resume("b", "a", n)
			left -= n
		}
	})
}

func TestKilledEdgeIsOneIncident(t *testing.T) {
	s := newSim(t, "a", "b")
	kill(s, 250)
	i := s.one()
	if got := s.since(i.StartMs); got < 7*time.Minute-time.Second || got > 7*time.Minute {
		t.Errorf("it began at %v, want the last figure, at 7m", got)
	}
	if got := after(i); got < 4800*time.Millisecond || got > 5200*time.Millisecond {
		t.Errorf("settled after %v, want 5s: one of silence, four of 250/s", got)
	}
	c := i.Causes[0]
	if len(i.Causes) != 1 || c.Kind != kindLost || c.Id != "a" || c.Displaced != 1000 || c.Back != 1000 || c.CaughtUp != 1000 {
		t.Errorf("causes: %v", i.Causes)
	}
	if i.PeakPerSecond != 270 || i.UsualPerSecond != 20 || i.P50Ms > i.P95Ms || i.P95Ms > i.P99Ms || i.P50Ms < 2800 || i.P99Ms > 5200 {
		t.Errorf("incident: %v", i)
	}
	if len(s.news.Settled) != 1 || s.news.Settled[0].After != after(i) {
		t.Errorf("told once: %v", s.news.Settled)
	}
	s.run(3*time.Minute, nil)
	if len(s.news.Lapsed) != 1 || s.news.Lapsed[0] != (Lapsed{"eu", kindLost, 1000, 1000, 0}) {
		t.Errorf("lapsed: %v", s.news.Lapsed)
	}
	s.run(15*time.Minute, nil)
	if !proto.Equal(s.one(), i) {
		t.Errorf("it changed after it was over:\n%v\n%v", i, s.one())
	}
}

// Lost figures, windows told again and in any order, and clocks that are off change
// nothing.
func TestWindowsCountOnceHoweverTheyCome(t *testing.T) {
	plain := newSim(t, "a", "b")
	kill(plain, 250)
	for _, skew := range []time.Duration{0, time.Second, -1300 * time.Millisecond, 2 * time.Hour} {
		for _, lose := range []float64{0, 0.5} {
			t.Run(fmt.Sprint(skew, lose), func(t *testing.T) {
				s := newSim(t, "a", "b")
				s.lose, s.order, s.edges["b"].skew = lose, true, skew
				kill(s, 250)
				i := s.one()
				if d := after(i) - after(plain.one()); lose == 0 && (d < -400*time.Millisecond || d > 400*time.Millisecond) || d < -3*time.Second || d > 3*time.Second {
					t.Errorf("settled after %v, want about %v", after(i), after(plain.one()))
				}
				if c := i.Causes[0]; c.Displaced != 1000 || c.Back != 1000 {
					t.Errorf("cause: %v", c)
				}
				total := uint32(0)
				for _, w := range s.tracker.Arrivals("eu", 0, s.now) {
					total += w.Resumed
				}
				if total != 1000 {
					t.Errorf("%d resumes are kept, want 1000", total)
				}
			})
		}
	}
}

// A trickle that stays within the usual rate is no storm: the region had settled at
// once, but who is not back is told after five minutes.
func TestSlowTrickleSettlesAtOnce(t *testing.T) {
	s := newSim(t, "a", "b")
	kill(s, 5)
	i := s.one()
	if after(i) != 0 || i.Admitted != 0 || i.P99Ms != 0 {
		t.Errorf("incident: %v", i)
	}
	s.run(3*time.Minute, nil)
	if c := s.one().Causes[0]; c.Displaced != 1000 || c.Back < 800 || c.NeverBack != c.Displaced-c.Back || c.NeverBack == 0 {
		t.Errorf("cause: %v", c)
	}
}

// Clients whose peer vanished without a word come when their pings have run out, not
// before: silence is not rest.
func TestSilenceBeforeTheStormIsNotRest(t *testing.T) {
	s := newSim(t, "a", "b")
	s.run(6*time.Minute, nil)
	s.edges["a"].dead = true
	s.run(4*time.Second, nil)
	s.tracker.Gone("a", 1, false, s.now)
	s.run(25*time.Second, nil)
	if s.one().SettledMs != 0 {
		t.Fatalf("settled before anybody came: %v", s.one())
	}
	left := 1000
	s.run(30*time.Second, func(time.Duration) {
		n := min(left, 20)
		s.resume("b", "a", n)
		left -= n
	})
	if got := after(s.one()); got < 38*time.Second || got > 40*time.Second {
		t.Errorf("settled after %v, want 39s", got)
	}
}

// A region has not settled while those it admitted are catching up.
func TestCatchingUpIsNotRest(t *testing.T) {
	s := newSim(t, "a", "b")
	s.run(6*time.Minute, nil)
	s.edges["a"].dead = true
	s.run(4*time.Second, nil)
	s.tracker.Gone("a", 1, false, s.now)
	s.run(20*time.Second, func(since time.Duration) {
		if since < 2*time.Second {
			s.resume("b", "a", 100)
			s.at("b").CaughtUp = 0
			s.edges["b"].catching += 100
		}
	})
	i := s.one()
	if c := i.Causes[0]; i.SettledMs != 0 || c.Back != 1000 || c.CaughtUp != 0 {
		t.Fatalf("1,000 are catching up: %v", i)
	}
	s.at("b").CaughtUp += 1000
	s.edges["b"].catching = 0
	s.run(20*time.Second, nil)
	if got := after(s.one()); got < 24*time.Second || got > 26*time.Second || s.one().Causes[0].CaughtUp != 1000 {
		t.Errorf("settled after %v, want 25s: %v", got, s.one())
	}
}

// drain lets edge from hand 50 clients a window to edge to, for some seconds; the last
// ten of a hundred are stragglers.
func (s *sim) drain(from, to string, seconds int) {
	s.run(time.Duration(seconds)*time.Second, func(time.Duration) {
		s.at(from).Told += 50
		s.at(from).Left += 50
		w := s.at(to)
		w.Moved += 50
		w.CaughtUp += 50
		if w.From == nil {
			w.From = map[string]uint32{}
		}
		w.From[from] += 50
		s.edges[from].conns -= 50
	})
}

func TestRestartIsAnOperation(t *testing.T) {
	s := newSim(t, "a", "b")
	s.run(6*time.Minute, nil)
	op := &gatewayv1.Operation{Id: "op-1", Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "a", StartedMs: uint64(s.now.UnixMilli())}
	s.run(time.Second, func(time.Duration) { s.at("a").Told += 2; s.at("a").Shut += 2 }) // stragglers; the record is not known yet
	s.tracker.Operations([]*gatewayv1.Operation{op})
	s.drain("a", "b", 4)
	s.run(2*time.Second, nil)
	s.edges["a"].dead = true
	s.tracker.Gone("a", 1, true, s.now)
	s.edges["a2"] = &simEdge{id: "a2", region: "eu", inc: 2, windows: map[int64]*gatewayv1.Window{}}
	s.run(time.Minute, nil)
	i := s.one()
	if c := i.Causes[0]; len(i.Causes) != 1 || c.Kind != kindOperation || c.Id != "op-1" || c.Displaced != 1010 || c.Back != 1000 {
		t.Errorf("causes: %v", i.Causes)
	}
	if s.since(i.StartMs) != 6*time.Minute || after(i) < 4500*time.Millisecond || after(i) > 5200*time.Millisecond {
		t.Errorf("began %v, settled after %v", s.since(i.StartMs), after(i))
	}
}

// Incidents that overlap are one, with both causes; the third comes after rest.
func TestOverlappingIncidentsAreOne(t *testing.T) {
	s := newSim(t, "a", "b", "c", "d")
	s.run(6*time.Minute, nil)
	s.drain("a", "d", 2)
	s.edges["b"].dead = true
	s.drain("a", "d", 1)
	left := 1000
	s.run(10*time.Second, func(since time.Duration) {
		if since == 3*time.Second {
			s.tracker.Gone("b", 1, false, s.now)
		}
		n := min(left, 40)
		s.resume("d", "b", n)
		left -= n
	})
	s.run(20*time.Second, nil)
	i := s.one()
	if len(i.Causes) != 2 || i.Causes[0].Kind != kindOperation || i.Causes[1].Kind != kindLost ||
		i.Causes[0].Displaced != 750 || i.Causes[0].Back != 750 || i.Causes[1].Displaced != 1000 || i.Causes[1].Back != 1000 {
		t.Errorf("causes: %v", i.Causes)
	}
	s.drain("c", "d", 3)
	s.run(20*time.Second, nil)
	if all := s.tracker.Incidents(""); len(all) != 2 || all[0].Causes[0].Id != "c" || all[0].StartMs < i.SettledMs {
		t.Errorf("incidents: %v", all)
	}
}

// Connections cut while all edges live: the second in which too many were lost.
func TestCutConnectionsAreAnUnknownCause(t *testing.T) {
	s := newSim(t, "a", "b")
	s.run(6*time.Minute, nil)
	s.run(400*time.Millisecond, func(time.Duration) { s.at("a").Lost += 100; s.at("b").Lost += 100 })
	s.edges["a"].conns, s.edges["b"].conns = 800, 800
	s.run(4*time.Second, func(time.Duration) { s.resume("a", "b", 10); s.resume("b", "a", 10) })
	s.run(30*time.Second, nil)
	i := s.one()
	if c := i.Causes[0]; len(i.Causes) != 1 || c.Kind != kindUnknown || c.Displaced != 400 || c.Back != 400 || s.since(c.StartMs) != 6*time.Minute {
		t.Errorf("causes: %v", i.Causes)
	}
}

// An evacuation is an incident of both regions: of the one whose clients were told,
// and of the one they went to.
func TestEvacuationIsAnIncidentOfBothRegions(t *testing.T) {
	s := newSim(t, "a", "b", "x")
	s.edges["x"].region = "us"
	s.run(6*time.Minute, nil)
	s.tracker.Operations([]*gatewayv1.Operation{{Id: "op-9", Kind: gatewayv1.OperationKind_OPERATION_KIND_EVACUATE, Region: "eu", StartedMs: uint64(s.now.UnixMilli())}})
	s.drain("a", "x", 2)
	s.drain("b", "x", 2)
	s.run(time.Minute, nil)
	for _, region := range []string{"eu", "us"} {
		all := s.tracker.Incidents(region)
		if len(all) != 1 || len(all[0].Causes) != 1 {
			t.Fatalf("%s: %v", region, all)
		}
		if c := all[0].Causes[0]; c.Id != "op-9" || c.Displaced != 1000 || c.Back != 1000 {
			t.Errorf("%s: %v", region, c)
		}
	}
	if i := s.tracker.Incidents("us")[0]; i.PeakPerSecond != 250 || after(i) < 3800*time.Millisecond || after(i) > 4400*time.Millisecond {
		t.Errorf("us: %v", i)
	}
}

// An edge that was restarted and leaves again within minutes: who comes back counts for
// the operation that sent him only, and only in the region he comes to.
func TestOperationsOfOneEdgeAreCountedApart(t *testing.T) {
	s := newSim(t, "a", "b", "x")
	s.edges["x"].region = "us"
	s.run(6*time.Minute, nil)
	ops := []*gatewayv1.Operation{{Id: "op-1", Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: "a", StartedMs: uint64(s.now.UnixMilli())}}
	s.tracker.Operations(ops)
	s.run(4*time.Second, func(time.Duration) { s.at("a").Shut += 10 }) // these have no tickets
	s.drain("a", "b", 2)
	s.run(time.Minute, nil)
	ops[0].EndedMs = uint64(s.now.UnixMilli()) - 54_000
	ops = append(ops, &gatewayv1.Operation{Id: "op-2", Kind: gatewayv1.OperationKind_OPERATION_KIND_EVACUATE, Region: "eu", StartedMs: uint64(s.now.UnixMilli())})
	s.tracker.Operations(ops)
	s.drain("a", "x", 2)
	s.drain("b", "x", 1)
	s.run(time.Minute, nil)
	if got := s.tracker.Peak("us", s.tracker.Incidents("us")[0].StartMs, uint64(s.now.UnixMilli())); got != 250 {
		t.Errorf("peak %v, want 250", got)
	}
	if got := s.tracker.Peak("us", s.tracker.Incidents("us")[0].StartMs+5_000, uint64(s.now.UnixMilli())); got != 0 {
		t.Errorf("peak %v after the last, want 0", got)
	}
	want := map[string][2]uint64{"op-1": {700, 500}, "op-2": {750, 750}}
	for region, causes := range map[string]int{"eu": 2, "us": 1} {
		found := 0
		for _, i := range s.tracker.Incidents(region) {
			for _, c := range i.Causes {
				found++
				if got := [2]uint64{c.Displaced, c.Back}; got != want[c.Id] {
					t.Errorf("%s: %v, want %v", region, c, want[c.Id])
				}
			}
		}
		if found != causes {
			t.Errorf("%s: %d causes, want %d: %v", region, found, causes, s.tracker.Incidents(region))
		}
	}
}

// An edge that killed nobody is no incident; one that speaks again was not lost.
func TestFalseAndEmptyLossesAreNoIncidents(t *testing.T) {
	s := newSim(t, "a", "b")
	s.edges["b"].conns = 0
	s.run(time.Minute, nil)
	s.edges["a"].dead, s.edges["b"].dead = true, true
	s.run(5*time.Second, nil)
	s.tracker.Gone("a", 1, false, s.now)
	s.tracker.Gone("b", 1, false, s.now)
	s.tracker.Gone("nobody", 1, false, s.now)
	s.step()
	s.one()
	s.edges["a"].dead = false
	s.run(5*time.Second, nil)
	if n := s.tracker.regions["eu"].conns; n != 1000 {
		t.Errorf("%d conns, want those of the edge that returned", n)
	}
	s.tracker.Gone("a", 1, true, s.now)
	s.run(5*time.Second, nil) // a last word after the farewell
	if n := s.tracker.regions["eu"].conns; n != 0 {
		t.Errorf("%d conns are left", n)
	}
	if all := s.tracker.Incidents(""); len(all) != 0 {
		t.Errorf("incidents: %v", all)
	}
}

// Whatever comes, memory and what is told stay within their bounds.
func TestHostileFiguresStayInBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tracker, now := New(), origin
	for k := range 1_500 {
		now = now.Add(time.Duration(r.IntN(300)) * time.Millisecond)
		id := fmt.Sprint("e", r.IntN(40))
		f := &gatewayv1.LoadFigure{
			Id: id, Role: gatewayv1.Role_ROLE_EDGE, Incarnation: r.Uint64N(3), Region: fmt.Sprint("r", r.IntN(40)),
			Conns: r.Uint64N(1000), CatchingUp: r.Uint64N(3),
		}
		for range r.IntN(10) {
			at := uint64(now.UnixMilli()) - r.Uint64N(700_000)
			if r.IntN(200) == 0 {
				at = r.Uint64()
			}
			f.Windows = append(f.Windows, &gatewayv1.Window{
				StartMs: at, Fresh: r.Uint32N(20), Told: r.Uint32N(2), Left: r.Uint32N(2), Shut: r.Uint32N(2), Lost: r.Uint32N(90), From: map[string]uint32{fmt.Sprint("e", r.IntN(40)): r.Uint32N(4)},
			})
		}
		tracker.Hear(f, now)
		if r.IntN(100) == 0 {
			tracker.Gone(id, r.Uint64N(3), r.IntN(2) == 0, now)
		}
		if k%50 != 0 {
			continue
		}
		tracker.Step(now)
		for _, i := range tracker.Incidents("") {
			if i.P50Ms > i.P95Ms || i.P95Ms > i.P99Ms || i.SettledMs != 0 && i.SettledMs < i.StartMs {
				t.Fatalf("incident: %v", i)
			}
			for _, c := range i.Causes {
				if c.Back > c.Displaced || c.CaughtUp > c.Back || c.NeverBack > c.Displaced || c.StartMs < i.StartMs {
					t.Fatalf("cause: %v", c)
				}
			}
		}
		if len(tracker.regions) > maxRegions || len(tracker.edges) > maxEdges {
			t.Fatal("too many regions or edges")
		}
		for _, r := range tracker.regions {
			if r.conns < 0 || r.catching < 0 || r.names > maxNames || len(r.causes) > maxCauses || len(r.past) > maxPast {
				t.Fatalf("%s: %d conns, %d catching up, %d names, %d causes, %d past", r.name, r.conns, r.catching, r.names, len(r.causes), len(r.past))
			}
		}
		for name, causes := range tracker.named {
			if len(causes) > maxCauses*maxRegions {
				t.Fatalf("%s is named by %d causes", name, len(causes))
			}
		}
	}
}

// A Step with a running incident in each of four regions of 25 edges.
func BenchmarkStep(b *testing.B) {
	tracker, now := New(), origin
	for range 600 {
		now = now.Add(time.Second)
		for e := range 100 {
			f := &gatewayv1.LoadFigure{Id: fmt.Sprint("e", e), Role: gatewayv1.Role_ROLE_EDGE, Region: fmt.Sprint("r", e%4), Conns: 1000}
			for w := range 5 {
				f.Windows = append(f.Windows, &gatewayv1.Window{StartMs: uint64(now.UnixMilli() - int64(w+1)*windowMS), Fresh: 20, From: map[string]uint32{"e0": 3}})
			}
			tracker.Hear(f, now)
		}
		if now.Sub(origin) == 400*time.Second {
			for e := range 4 {
				tracker.Gone(fmt.Sprint("e", e), 0, false, now)
			}
		}
	}
	for b.Loop() {
		tracker.Step(now)
	}
}
