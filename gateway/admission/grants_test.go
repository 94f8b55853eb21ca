package admission

import (
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func request(edge string, number, movable, unmovable uint32) *gatewayv1.GrantRequest {
	return &gatewayv1.GrantRequest{
		Operation: "op-" + edge, Edge: edge, Number: number, Movable: movable, Unmovable: unmovable, WindowMs: 20_000, Region: "eu",
	}
}

func confirm(o *gatewayv1.GrantOffer, lastSlot time.Duration) *gatewayv1.GrantConfirm {
	return &gatewayv1.GrantConfirm{
		Operation: o.Operation, Edge: o.Edge, Number: o.Number, Movable: o.Movable, Unmovable: o.Unmovable, LastSlotMs: uint32(lastSlot.Milliseconds()),
	}
}

var receiver = Receiver{Headroom: 10_000, MovedPerSecond: 500, FreshPerSecond: 100, Region: "eu", CriticalReserve: 100, ForeignPercent: 80}

func TestARepeatGetsTheSameAnswerAndHoldsNothingMore(t *testing.T) {
	g := NewGrants()
	first := g.Offer(request("a", 1, 1000, 0), receiver, epoch)
	again := g.Offer(request("a", 1, 1000, 0), receiver, epoch.Add(time.Second))
	if !proto.Equal(first, again) || first.Movable != 1000 || g.Outstanding(epoch.Add(time.Second)) != 1000 {
		t.Errorf("%v, then %v; %d held", first, again, g.Outstanding(epoch))
	}
	if first.MovablePerSecond < 50 || first.MovablePerSecond > 60 {
		t.Errorf("1,000 in 20 s are granted at %v a second", first.MovablePerSecond)
	}
}

func TestGrantsLapse(t *testing.T) {
	g := NewGrants()
	o := g.Offer(request("a", 1, 1000, 0), receiver, epoch)
	late := epoch.Add(holdOffer)
	if n := g.Outstanding(late); n != 0 {
		t.Errorf("%d held unconfirmed after 2 s", n)
	}
	if g.Confirm(confirm(o, time.Second), late).Held {
		t.Error("a lapsed offer was confirmed")
	}
	o = g.Offer(request("a", 2, 1000, 0), receiver, late)
	for range 2 { // a repeat is harmless
		if !g.Confirm(confirm(o, 10*time.Second), late).Held {
			t.Error("not held")
		}
	}
	move := &Move{Operation: "op-a", Edge: "a"}
	if g.take(move, late.Add(24*time.Second)) == nil {
		t.Error("a confirmed grant does not live 15 s after its last slot")
	}
	if g.take(move, late.Add(25*time.Second)) != nil || g.Outstanding(late.Add(25*time.Second)) != 0 {
		t.Error("it lives longer")
	}
}

func TestWhatIsNotNeededIsGivenBack(t *testing.T) {
	g := NewGrants()
	o := g.Offer(request("a", 1, 1000, 100), receiver, epoch)
	part := confirm(o, 10*time.Second)
	part.Movable = 300
	g.Confirm(part, epoch)
	if n := g.Outstanding(epoch); n != 400 {
		t.Errorf("%d held", n)
	}
	if n := g.Outstanding(epoch.Add(5 * time.Second)); n < 345 || n > 355 {
		t.Errorf("%d held when half of those who cannot move must have come", n)
	}
	g.Confirm(&gatewayv1.GrantConfirm{Operation: o.Operation, Edge: o.Edge, Number: o.Number}, epoch)
	if n := g.Outstanding(epoch); n != 0 {
		t.Errorf("%d held after all was given back", n)
	}
}

func TestDrainsWithinTwoSecondsShareTheRateEvenly(t *testing.T) {
	g := NewGrants()
	a := g.Offer(request("a", 1, 100_000, 0), Receiver{Headroom: 1 << 20, MovedPerSecond: 500, Region: "eu"}, epoch)
	b := g.Offer(request("b", 1, 100_000, 0), Receiver{Headroom: 1 << 20, MovedPerSecond: 500, Region: "eu"}, epoch.Add(time.Second))
	if a.MovablePerSecond != 250 || b.MovablePerSecond != 250 {
		t.Errorf("%v and %v", a, b)
	}
	g = NewGrants()
	known := Receiver{Headroom: 9_000, MovedPerSecond: 600, Region: "eu", Drains: 3}
	for _, edge := range []string{"a", "b", "c"} {
		if o := g.Offer(request(edge, 1, 5_000, 0), known, epoch); o.MovablePerSecond < 164 || o.Movable < 2990 || o.Movable > 3010 {
			t.Errorf("of three: %v", o)
		}
	}
}

func TestCriticalClientsUseTheReserveAndForeignOnesAPart(t *testing.T) {
	to := receiver
	to.Headroom = 1000
	r := request("a", 1, 2000, 0)
	if o := NewGrants().Offer(r, to, epoch); o.Movable != 900 || o.Reason != reasonFull {
		t.Errorf("no critical ones: %v", o)
	}
	r.Critical = 950
	if o := NewGrants().Offer(r, to, epoch); o.Movable != 950 {
		t.Errorf("critical ones: %v", o)
	}
	r.Critical, r.Region = 0, "us"
	if o := NewGrants().Offer(r, to, epoch); o.Movable != 700 {
		t.Errorf("another region: %v", o)
	}
	to.Draining = true
	if o := NewGrants().Offer(r, to, epoch); o.Movable != 0 || o.Reason != reasonDraining {
		t.Errorf("a draining edge: %v", o)
	}
}

func TestMovedClientsComeOnTheirGrantsOnly(t *testing.T) {
	s := newSim(Default())
	o := s.g.Offer(request("a", 1, 10, 0), 0, s.now)
	move := Arrival{Lane: LaneMoved, Obeys: true, Move: &Move{Operation: "op-a", Edge: "a"}}
	if d := s.arrive(move); d.Lane != LaneResume {
		t.Errorf("an offer that is not confirmed admits: %+v", d)
	}
	s.g.Confirm(confirm(o, time.Second), s.now)
	for i := range 12 {
		want := LaneMoved
		if i >= 10 {
			want = LaneResume
		}
		if d := s.arrive(move); d.Lane != want || d.Verdict != Admit {
			t.Errorf("%d: %+v", i, d)
		}
	}
}

// Behind one address any edge takes clients of the operation from its own grants.
func TestTheGrantsOfAnOperationAreOnePotBehindOneAddress(t *testing.T) {
	s := newSim(Default())
	r := request("a", 1, 5, 0)
	r.Operation = "evacuate"
	s.g.Confirm(confirm(s.g.Offer(r, 0, s.now), time.Second), s.now)
	for _, anywhere := range []bool{false, true} {
		d := s.arrive(Arrival{Lane: LaneMoved, Move: &Move{Operation: "evacuate", Edge: "b", Anywhere: anywhere}})
		if (d.Lane == LaneMoved) != anywhere {
			t.Errorf("anywhere %v: %+v", anywhere, d)
		}
	}
}

func TestFreshClientsLeaveTheRoomOfGrants(t *testing.T) {
	s := newSim(Default())
	set := Default()
	set.CriticalReserve = 0
	s.g.Set(set, Capacity{MaxConns: 20, Margin: 5}, s.now)
	s.g.Confirm(confirm(s.g.Offer(request("a", 1, 10, 0), 0, s.now), time.Second), s.now)
	for i := range 7 {
		if d := s.arrive(Arrival{Lane: LaneFresh}); (d.Verdict == Admit) != (i < 5) {
			t.Errorf("fresh %d: %+v", i, d)
		}
	}
	for i := range 10 {
		if d := s.arrive(Arrival{Lane: LaneMoved, Move: &Move{Operation: "op-a", Edge: "a"}}); d.Verdict != Admit || d.Lane != LaneMoved {
			t.Errorf("moved %d: %+v", i, d)
		}
	}
}

// I5 for grants: whatever is asked, confirmed, given back, repeated and lapses, moved
// admissions never exceed what was confirmed, and the room held never what there is.
func TestMovedAdmissionsNeverExceedConfirmedGrants(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := newSim(Default())
		const room = 2000
		set := Default()
		s.g.Set(set, Capacity{MaxConns: room, Margin: 0}, s.now)
		confirmed := map[string]int{} // most ever confirmed, by request
		var offers []*gatewayv1.GrantOffer
		for range rapid.IntRange(1, 200).Draw(r, "steps") {
			switch rapid.IntRange(0, 4).Draw(r, "what") {
			case 0:
				q := request(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "edge"), uint32(rapid.IntRange(1, 4).Draw(r, "number")),
					uint32(rapid.IntRange(0, 1500).Draw(r, "movable")), uint32(rapid.IntRange(0, 300).Draw(r, "unmovable")))
				offers = append(offers, s.g.Offer(q, s.conns, s.now))
			case 1:
				if len(offers) == 0 {
					continue
				}
				o := rapid.SampledFrom(offers).Draw(r, "offer")
				c := confirm(o, time.Duration(rapid.IntRange(0, 20).Draw(r, "last"))*time.Second)
				c.Movable = uint32(rapid.IntRange(0, int(o.Movable)+100).Draw(r, "part"))
				if s.g.Confirm(c, s.now).Held {
					confirmed[o.Edge] += int(c.Movable) // at most that
				}
			case 2, 3:
				edge := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "from")
				for range rapid.IntRange(1, 100).Draw(r, "crowd") {
					s.arrive(Arrival{Lane: LaneMoved, Move: &Move{Operation: "op-" + edge, Edge: edge}})
				}
			default:
				s.step(time.Duration(rapid.IntRange(0, 3000).Draw(r, "ms")) * time.Millisecond)
			}
			if held := s.g.grants.Outstanding(s.now); held < 0 || s.conns+held > room+len(s.g.grants.order) {
				r.Fatalf("%d conns and %d held in room for %d", s.conns, held, room)
			}
		}
		total := 0
		for _, n := range confirmed {
			total += n
		}
		if n := len(s.admitted[LaneMoved]); n > total {
			r.Fatalf("%d moved in on %d granted", n, total)
		}
		checkWindows(r, s.admitted[LaneMoved], 500, 50)
	})
}

// Strangers get their part of the headroom once, not of what earlier rounds left.
func TestStrangersGetNoMoreByAskingAgain(t *testing.T) {
	s := newSim(Default())
	set := Default()
	set.CriticalReserve = 0
	s.g.Set(set, Capacity{MaxConns: 1000}, s.now)
	granted := 0
	for round := range uint32(20) {
		r := request("a", round+1, 1000, 0)
		r.Region, r.WindowMs = "us", 2_000
		o := s.g.Offer(r, s.conns, s.now)
		granted += int(o.Movable)
		s.g.Confirm(confirm(o, time.Second), s.now)
		for range 300 {
			for range 2 {
				if st := s.g.Status(s.conns, s.now); st.Granted > 0 {
					s.arrive(Arrival{Lane: LaneMoved, Move: &Move{Operation: "op-a", Edge: "a"}})
				}
			}
			s.step(20 * time.Millisecond)
		}
	}
	if granted != 800 {
		t.Errorf("%d of 1,000 in 20 rounds, want 800", granted)
	}
	own := request("b", 1, 1000, 0)
	if o := s.g.Offer(own, s.conns, s.now); o.Movable != 200 {
		t.Errorf("the own region gets %d of what is left, want 200", o.Movable)
	}
}
