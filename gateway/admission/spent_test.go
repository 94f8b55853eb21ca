package admission

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"pgregory.net/rapid"
)

// region is a few edges that tell each other which tickets were used, over a bus that
// is late and loses messages; clocks differ.
type region struct {
	now     time.Time
	gates   []*Gate
	offsets []time.Duration
	conns   []int
	told    []telling
	used    map[uint64][]int // by mark: edges that have admitted it as what it is
	heard   map[uint64]map[int]bool
	waiting map[uint64]shown // by arrival
	id      uint64
}

type telling struct {
	mark uint64
	to   int
	at   time.Time
}

type shown struct {
	edge   int
	ticket *once
}

// once is a ticket that is good once.
type once struct {
	mark   uint64
	slot   time.Time // pass
	move   *Move     // moved ticket
	honest bool      // its client shows it at one edge at a time, and no more once it was admitted
	busy   bool      // of an honest one: an attempt is under way
	done   bool
}

const (
	regionEdges = 3
	placesEach  = 40
)

func newRegion(r *rapid.T) *region {
	g := &region{
		now: epoch.Add(time.Hour), conns: make([]int, regionEdges), used: map[uint64][]int{},
		heard: map[uint64]map[int]bool{}, waiting: map[uint64]shown{},
	}
	set := Default()
	set.FreshPerSecond, set.FreshBurst, set.MovedPerSecond, set.Adaptive = 5, 3, 10, false
	for i := range regionEdges {
		g.offsets = append(g.offsets, time.Duration(rapid.IntRange(-150, 150).Draw(r, "clock"))*time.Millisecond)
		gate := New(set, Capacity{MaxConns: 10_000, Margin: 10}, "eu", rand.New(rand.NewPCG(uint64(i), 2)), g.clock(i))
		o := gate.Offer(&gatewayv1.GrantRequest{Operation: "op", Edge: "a", Number: 1, Movable: placesEach, WindowMs: 5_000, Region: "eu"}, 0, g.clock(i))
		if o.Movable != placesEach || !gate.Confirm(confirm(o, 30*time.Second), g.clock(i)).Held {
			r.Fatalf("no grant: %v", o)
		}
		g.gates = append(g.gates, gate)
	}
	return g
}

func (g *region) clock(edge int) time.Time { return g.now.Add(g.offsets[edge]) }

// show has a client come with a ticket. as: the edge takes it for what it is.
func (g *region) show(edge int, t *once) (d Decision, as bool) {
	g.id++
	a := Arrival{ID: g.id, Lane: LaneFresh, Obeys: true}
	if t.move != nil {
		a.Lane, a.Move = LaneMoved, t.move
	} else {
		a.Pass = &Pass{Nonce: t.mark, Slot: t.slot}
	}
	d = g.gates[edge].Arrive(a, g.conns[edge], g.clock(edge))
	switch {
	case d.Verdict == Wait:
		w := g.gates[edge].waiters[d.ID]
		g.waiting[d.ID] = shown{edge, t}
		return d, w.mark == t.mark
	case d.Verdict == Admit:
		g.conns[edge]++
	}
	return d, d.Spent == t.mark
}

// decided notes what came of a showing, for the model and for the other edges.
func (g *region) decided(r *rapid.T, edge int, t *once, d Decision) {
	t.busy = d.Verdict == Wait
	if d.Spent == 0 {
		return
	}
	if d.Spent != t.mark {
		r.Fatalf("%x was shown, %x is spent", t.mark, d.Spent)
	}
	g.used[t.mark] = append(g.used[t.mark], edge)
	t.done = true
	for to := range g.gates {
		if to != edge && !rapid.Bool().Draw(r, "lost") {
			late := time.Duration(rapid.IntRange(0, 2_000).Draw(r, "late")) * time.Millisecond
			g.told = append(g.told, telling{t.mark, to, g.now.Add(late)})
		}
	}
}

// step lets time go on: messages come, the waiting room is served.
func (g *region) step(r *rapid.T, d time.Duration) {
	g.now = g.now.Add(d)
	kept := g.told[:0]
	for _, m := range g.told {
		if m.at.After(g.now) {
			kept = append(kept, m)
			continue
		}
		g.gates[m.to].Spent(m.mark, g.clock(m.to))
		if g.heard[m.mark] == nil {
			g.heard[m.mark] = map[int]bool{}
		}
		g.heard[m.mark][m.to] = true
	}
	g.told = kept
	for i, gate := range g.gates {
		for _, x := range gate.Serve(nil, g.conns[i], g.clock(i)) {
			if x.Verdict == Admit {
				g.conns[i]++
			}
			w := g.waiting[x.ID]
			delete(g.waiting, x.ID)
			if x.Spent != 0 && g.heard[x.Spent][i] {
				r.Fatalf("edge %d serves %x although it has heard that it was used", i, x.Spent)
			}
			if w.ticket.honest && x.Spent == 0 && !w.ticket.done {
				if w.ticket.move == nil { // a moved one gives its place back and may come again
					r.Fatalf("an honest pass waited at edge %d and was served as none: %+v", i, x)
				}
			}
			g.decided(r, i, w.ticket, x)
		}
	}
}

// hangUp takes a client out of a waiting room.
func (g *region) hangUp(id uint64) {
	w := g.waiting[id]
	delete(g.waiting, id)
	g.gates[w.edge].Gone(id)
	w.ticket.busy = false
}

// Passes and moved tickets are good once in a region: an edge takes none that it has
// used, or has heard of; a moved ticket takes one place of a grant at most, at each edge
// no more come than were confirmed. Late and lost messages never cost an honest client
// anything: one that was not admitted with its ticket can come with it anywhere.
func TestATicketIsGoodOnceAndAnHonestOneAlways(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		g := newRegion(r)
		var tickets []*once
		for i := range rapid.IntRange(1, 12).Draw(r, "tickets") {
			x := &once{mark: uint64(i) + 1, honest: rapid.Bool().Draw(r, "honest")}
			if rapid.Bool().Draw(r, "moved") {
				x.move = &Move{Operation: "op", Edge: "a", Anywhere: true, Mark: x.mark, Until: g.now.Add(20 * time.Second)}
			} else {
				x.slot = g.now.Add(time.Duration(rapid.IntRange(0, 3_000).Draw(r, "slot")) * time.Millisecond)
			}
			tickets = append(tickets, x)
		}
		for range rapid.IntRange(1, 80).Draw(r, "steps") {
			g.step(r, time.Duration(rapid.IntRange(0, 300).Draw(r, "ms"))*time.Millisecond)
			for id := range g.waiting {
				if rapid.IntRange(0, 9).Draw(r, "hang up") == 0 {
					g.hangUp(id)
				}
				break // any one
			}
			x := tickets[rapid.IntRange(0, len(tickets)-1).Draw(r, "ticket")]
			if x.honest && (x.busy || x.done) {
				continue
			}
			for range rapid.IntRange(1, 3).Draw(r, "edges at once") {
				edge := rapid.IntRange(0, regionEdges-1).Draw(r, "edge")
				at := g.clock(edge)
				good := x.move != nil && at.Before(x.move.Until) ||
					x.move == nil && !at.Before(x.slot) && !at.After(x.slot.Add(PassLife))
				usedHere := false
				for _, e := range g.used[x.mark] {
					usedHere = usedHere || e == edge
				}
				d, as := g.show(edge, x)
				if d.Cause == CauseEarly {
					continue
				}
				switch {
				case as && (usedHere || g.heard[x.mark][edge]):
					r.Fatalf("edge %d takes %x again", edge, x.mark)
				case x.honest && good && !as && !(x.move != nil && d.Verdict == Refuse):
					r.Fatalf("edge %d does not take %x, which was never used: %+v", edge, x.mark, d)
				}
				g.decided(r, edge, x, d)
				if x.honest {
					break
				}
			}
		}
		for mark, edges := range g.used {
			seen := map[int]bool{}
			for _, e := range edges {
				if seen[e] {
					r.Fatalf("edge %d used %x twice", e, mark)
				}
				seen[e] = true
			}
		}
		for i, gate := range g.gates {
			for _, grant := range gate.grants.grants {
				if grant.used+grant.reserved > placesEach {
					r.Fatalf("%d came to edge %d on a grant for %d", grant.used, i, placesEach)
				}
			}
		}
	})
}

// One client with a ticket for a moved place comes again and again, at once and to all
// edges: before, it took places until the grant was empty.
func TestAMovedTicketTakesOnePlace(t *testing.T) {
	for _, anywhere := range []bool{false, true} {
		s := newSim(Default())
		o := s.g.Offer(&gatewayv1.GrantRequest{Operation: "op", Edge: "a", Number: 1, Movable: 10, WindowMs: 5_000, Region: "eu"}, 0, s.now)
		s.g.Confirm(confirm(o, 10*time.Second), s.now)
		move := &Move{Operation: "op", Edge: "a", Anywhere: anywhere, Mark: 5, Until: s.now.Add(10 * time.Second)}
		first := s.arrive(Arrival{Lane: LaneMoved, Obeys: true, Move: move})
		if first.Lane != LaneMoved || first.Verdict != Admit || (first.Spent == 5) != anywhere {
			t.Fatalf("the first time: %+v", first)
		}
		for range 20 {
			if d := s.arrive(Arrival{Lane: LaneMoved, Obeys: true, Move: move}); d.Lane != LaneResume {
				t.Fatalf("a later time: %+v", d)
			}
			s.step(50 * time.Millisecond)
		}
		if n := s.g.grants.Confirmed(s.now); n != 9 {
			t.Errorf("%d places are left of 10", n)
		}
	}
}

// Who waits with a pass that was used elsewhere meanwhile waits on as a newcomer.
func TestAPassUsedElsewhereWhileItWaitsIsANewcomer(t *testing.T) {
	set := Default()
	set.FreshPerSecond, set.FreshBurst = 2, 1
	s := newSim(set)
	s.arrive(Arrival{Lane: LaneFresh})
	newcomer := s.arrive(Arrival{Lane: LaneFresh, Obeys: true})
	s.now = s.now.Add(10 * time.Millisecond)
	cheat := s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: &Pass{Nonce: 1, Slot: s.now}})
	honest := s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: &Pass{Nonce: 2, Slot: s.now}})
	if newcomer.Verdict != Wait || cheat.Verdict != Wait || honest.Verdict != Wait {
		t.Fatalf("%+v, %+v, %+v", newcomer, cheat, honest)
	}
	if s.g.Spent(1, s.now) {
		t.Error("it was not used here")
	}
	var order []uint64
	for range 40 {
		for _, d := range s.step(50 * time.Millisecond) {
			if d.Verdict != Admit {
				t.Fatalf("%+v", d)
			}
			order = append(order, d.ID)
		}
	}
	if want := []uint64{honest.ID, newcomer.ID, cheat.ID}; fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("served in the order %v, want %v", order, want)
	}
}

func TestUsedTicketsAreRememberedWithinABound(t *testing.T) {
	s, now := newSpent(), epoch
	for i := range uint64(3 * maxSpent) {
		s.set(i+1, usedElsewhere, now)
	}
	if s.bytes() != maxSpent*spentBytes || len(s.at) != maxSpent || s.dropped != 2*maxSpent {
		t.Errorf("%d bytes, %d marks, %d dropped", s.bytes(), len(s.at), s.dropped)
	}
	if s.kind(3*maxSpent) != usedElsewhere || s.kind(1) != usedNot {
		t.Error("not the oldest were forgotten")
	}
	now = now.Add(spentLife)
	s.set(1, usedHeld, now)
	s.unset(1)
	s.set(1, usedHere, now.Add(time.Second))
	if len(s.at) != 1 || s.bytes() != 2*spentBytes || s.dropped != 2*maxSpent {
		t.Errorf("%d marks in %d bytes after their time; %d dropped", len(s.at), s.bytes(), s.dropped)
	}
	s.expire(now.Add(spentLife)) // the use that was taken back, not the one after it
	if s.kind(1) != usedHere {
		t.Error("a later use was forgotten with an earlier one")
	}
}

// What is told of a used ticket costs the memory that is said.
func TestAMarkCostsWhatItIsSaidTo(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures the heap")
	}
	before := heapBytes()
	s := newSpent()
	for i := range uint64(maxSpent) {
		s.set(i*0x9e3779b97f4a7c15+1, usedElsewhere, epoch.Add(time.Duration(i)*time.Microsecond))
	}
	each := float64(heapBytes()-before) / maxSpent
	t.Logf("%.0f bytes each", each)
	if each > spentBytes || s.kind(1) != usedElsewhere {
		t.Errorf("%.0f bytes each, want at most %d", each, spentBytes)
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
