package admission

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sim drives a gate as the door does.
type sim struct {
	g        *Gate
	now      time.Time
	id       uint64
	conns    int
	admitted map[Lane][]time.Time
	ended    map[uint64]Decision // of waiters, admitted or refused
}

func newSim(s Settings) *sim {
	return &sim{
		g:   New(s, Capacity{MaxConns: 1 << 20, Margin: 100}, "eu", rand.New(rand.NewPCG(1, 2)), epoch),
		now: epoch, admitted: make(map[Lane][]time.Time), ended: make(map[uint64]Decision),
	}
}

func (s *sim) arrive(a Arrival) Decision {
	s.id++
	a.ID = s.id
	d := s.g.Arrive(a, s.conns, s.now)
	s.note(d)
	return d
}

func (s *sim) note(d Decision) {
	if d.Verdict == Admit {
		s.conns++
		s.admitted[d.Lane] = append(s.admitted[d.Lane], s.now)
	}
}

func (s *sim) step(d time.Duration) []Decision {
	s.now = s.now.Add(d)
	served := s.g.Serve(nil, s.conns, s.now)
	for _, x := range served {
		s.note(x)
		s.ended[x.ID] = x
	}
	return served
}

// perSecond counts what a lane admitted in each second.
func (s *sim) perSecond(l Lane, n int) []int {
	counts := make([]int, n)
	for _, at := range s.admitted[l] {
		if i := int(at.Sub(epoch) / time.Second); i < n {
			counts[i]++
		}
	}
	return counts
}

// Nobody comes back in this one: three times the rate arrives for 20 s.
func TestThreeTimesTheRateAdmitsTheBurstOnceThenTheRate(t *testing.T) {
	s := newSim(Default())
	for range 20 * 300 {
		s.arrive(Arrival{Lane: LaneFresh})
		s.step(time.Second / 300)
	}
	got := s.perSecond(LaneFresh, 20)
	if got[0]+got[1] < 350 || got[0] > 310 {
		t.Errorf("the burst: %v", got)
	}
	for i, n := range got[2:] {
		if n < 90 || n > 110 {
			t.Errorf("second %d admitted %d, want 100: %v", i+2, n, got)
		}
	}
}

// I5: in every window of length T, admitted <= burst + rate * T, whatever comes, hangs
// up, brings passes or changes the settings downwards.
func TestNoWindowAdmitsMoreThanBurstAndRate(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		set := Default()
		set.FreshPerSecond = rapid.IntRange(1, 200).Draw(r, "fresh")
		set.FreshBurst = rapid.IntRange(1, 300).Draw(r, "burst")
		set.ResumePerSecond = rapid.IntRange(1, 300).Draw(r, "resume")
		set.ResumeBurst = rapid.IntRange(1, 50).Draw(r, "resume burst")
		s := newSim(set)
		var waiting []uint64
		var slots []Decision
		for range rapid.IntRange(1, 400).Draw(r, "steps") {
			a := Arrival{Lane: rapid.SampledFrom([]Lane{LaneFresh, LaneResume}).Draw(r, "lane"), Obeys: rapid.Bool().Draw(r, "obeys")}
			if len(slots) > 0 && rapid.Bool().Draw(r, "pass") {
				a.Obeys, a.Pass, a.Lane = true, &Pass{Nonce: slots[0].ID, Slot: slots[0].Slot}, slots[0].Lane
				slots = slots[1:]
			}
			for range rapid.IntRange(1, 60).Draw(r, "crowd") {
				switch d := s.arrive(a); {
				case d.Verdict == Wait:
					waiting = append(waiting, d.ID)
				case d.Verdict == Refuse && !d.Slot.IsZero():
					slots = append(slots, d)
				}
				a.Pass = nil
			}
			if len(waiting) > 0 && rapid.Bool().Draw(r, "hang up") {
				s.g.Gone(waiting[len(waiting)/2])
			}
			if rapid.IntRange(0, 9).Draw(r, "observe") == 0 {
				s.g.Observe(Signals{BackfillLag: time.Duration(rapid.IntRange(0, 2).Draw(r, "lag")) * time.Second}, s.now)
			}
			s.step(time.Duration(rapid.IntRange(0, 2000).Draw(r, "ms")) * time.Millisecond)
			if n := len(s.g.waiters); n > set.MaxWaiting {
				r.Fatalf("%d wait", n)
			}
		}
		checkWindows(r, s.admitted[LaneFresh], float64(set.FreshPerSecond), float64(set.FreshBurst))
		checkWindows(r, s.admitted[LaneResume], float64(set.ResumePerSecond), float64(set.ResumeBurst))
	})
}

func checkWindows(t interface{ Fatalf(string, ...any) }, at []time.Time, rate, burst float64) {
	for i := range at {
		for j := i; j < len(at); j++ {
			n := float64(j - i + 1)
			if most := burst + rate*at[j].Sub(at[i]).Seconds() + 1e-6; n > math.Floor(most) {
				t.Fatalf("%v admitted within %v, most %v", n, at[j].Sub(at[i]), most)
			}
		}
	}
}

// Old clients in step: all dial every 5 s and hang up before the next try.
// n/rate = 20 s; without the room they need 50 s.
func TestRetriersInStepDoNotWasteTheRate(t *testing.T) {
	backIn := func(wait time.Duration) time.Duration {
		set := Default()
		set.FreshPerSecond, set.FreshBurst, set.Wait = 500, 500, wait
		s := newSim(set)
		out := 10_000
		for s.now.Sub(epoch) < 2*time.Minute && s.conns < out {
			var waiting []uint64
			for range out - s.conns {
				if d := s.arrive(Arrival{Lane: LaneFresh}); d.Verdict == Wait {
					waiting = append(waiting, d.ID)
				}
			}
			for range 500 {
				s.step(10 * time.Millisecond)
			}
			for _, id := range waiting {
				s.g.Gone(id)
			}
		}
		at := s.admitted[LaneFresh]
		return at[len(at)-1].Sub(epoch)
	}
	if d := backIn(3 * time.Second); d > 25*time.Second {
		t.Errorf("with the room: %v", d)
	}
	if d := backIn(0); d < 40*time.Second {
		t.Errorf("without it the clients are done in %v: this test shows nothing", d)
	}
}

// Those who obey come at their slots, are served there, and need no second pass.
func TestEverybodyIsServedAtTheFirstSlot(t *testing.T) {
	s := newSim(Default())
	type back struct {
		at   time.Time
		pass *Pass
	}
	var coming []back
	refused := 0
	for range 2000 { // at once
		if d := s.arrive(Arrival{Lane: LaneFresh, Obeys: true}); d.Verdict == Refuse {
			refused++
			if d.Slot.IsZero() {
				continue
			}
			coming = append(coming, back{s.now.Add(d.After), &Pass{Nonce: d.ID, Slot: d.Slot}})
		}
	}
	if refused != 2000-200-300 {
		t.Errorf("%d refused", refused)
	}
	for s.now.Sub(epoch) < 35*time.Second {
		s.step(10 * time.Millisecond)
		coming = slices.DeleteFunc(coming, func(b back) bool {
			if b.at.After(s.now) {
				return false
			}
			if d := s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: b.pass}); d.Verdict == Refuse {
				t.Fatalf("refused with a pass: %+v", d)
			}
			return true
		})
	}
	if s.conns != 2000 {
		t.Errorf("%d are in", s.conns)
	}
}

func TestPassesComeBeforeNewcomersAndAreGoodOnce(t *testing.T) {
	set := Default()
	set.FreshPerSecond, set.FreshBurst = 10, 1
	s := newSim(set)
	s.arrive(Arrival{Lane: LaneFresh}) // the burst
	first := s.arrive(Arrival{Lane: LaneFresh})
	pass := &Pass{Nonce: 7, Slot: s.now}
	second := s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: pass})
	again := s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: pass})
	if first.Verdict != Wait || second.Verdict != Wait || again.Verdict != Wait {
		t.Fatal(first, second, again)
	}
	var order []uint64
	for range 40 {
		for _, d := range s.step(10 * time.Millisecond) {
			order = append(order, d.ID)
		}
	}
	if want := []uint64{second.ID, first.ID, again.ID}; !slices.Equal(order, want) {
		t.Errorf("served %v, want %v", order, want)
	}
}

func TestAnEarlyPassKeepsItsSlotAndALateOneIsANewcomer(t *testing.T) {
	s := newSim(Default())
	early := &Pass{Nonce: 1, Slot: s.now.Add(10 * time.Second)}
	if d := s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: early}); d.Cause != CauseEarly || !d.Slot.Equal(early.Slot) || d.After != 10*time.Second {
		t.Errorf("%+v", d)
	}
	w := &waiter{lane: LaneFresh, arrival: Arrival{Pass: &Pass{Nonce: 2, Slot: s.now.Add(-PassLife - 1)}}}
	if s.g.showPass(w, s.now) || w.pass {
		t.Error("a late pass is good")
	}
}

// A pass that could not be served gets a slot ahead of those given since.
func TestAPassThatCouldNotBeServedIsRenewed(t *testing.T) {
	set := Default()
	set.FreshPerSecond, set.FreshBurst, set.Wait = 10, 1, 100*time.Millisecond
	s := newSim(set)
	var last Decision
	for range 200 {
		last = s.arrive(Arrival{Lane: LaneFresh, Obeys: true})
	}
	if last.After < 15*time.Second {
		t.Fatalf("the timetable is short: %+v", last)
	}
	var renewed Decision
	for i := range 5 { // more at once than can be served
		renewed = s.arrive(Arrival{Lane: LaneFresh, Obeys: true, Pass: &Pass{Nonce: uint64(i), Slot: s.now}})
	}
	if renewed.Verdict != Refuse || renewed.Slot.IsZero() || renewed.After > 2*time.Second {
		t.Errorf("%+v", renewed)
	}
}

// Clients that ignore their passes fill the timetable, but not the way in.
func TestPassesThatAreNotUsedDoNotStarveTheOthers(t *testing.T) {
	s := newSim(Default())
	for range 30 { // everybody in step, once a second; nobody uses a pass
		var waiting []uint64
		for range 3000 {
			if d := s.arrive(Arrival{Lane: LaneFresh, Obeys: true}); d.Verdict == Wait {
				waiting = append(waiting, d.ID)
			}
		}
		for range 100 {
			s.step(10 * time.Millisecond)
		}
		for _, id := range waiting {
			s.g.Gone(id)
		}
	}
	if want := 200 + 30*100; s.conns < want*9/10 {
		t.Errorf("%d admitted, want about %d: %v", s.conns, want, s.perSecond(LaneFresh, 30))
	}
}

func TestCapacity(t *testing.T) {
	s := newSim(Default())
	s.g.Set(Default(), Capacity{MaxConns: 10, Margin: 3}, s.now)
	for i := range 20 {
		d := s.arrive(Arrival{Lane: LaneFresh, Obeys: true})
		if want := i < 7; (d.Verdict == Admit) != want {
			t.Errorf("fresh %d: %+v", i, d)
		}
		if d.Verdict == Refuse && (d.Cause != CauseFull || !d.Slot.IsZero()) {
			t.Errorf("%+v", d)
		}
	}
	for i := range 5 {
		if d := s.arrive(Arrival{Lane: LaneResume}); (d.Verdict == Admit) != (i < 3) {
			t.Errorf("resume %d: %+v", i, d)
		}
	}
	s.g.See([]Peer{{ID: "a"}, {ID: "b"}}, true, s.now)
	if d := s.arrive(Arrival{Lane: LaneResume}); !d.Elsewhere || d.After < 250*time.Millisecond || d.After > time.Second {
		t.Errorf("where others have room: %+v", d)
	}
}

func TestWhoHangsUpTakesNoToken(t *testing.T) {
	set := Default()
	set.FreshPerSecond, set.FreshBurst = 10, 1
	s := newSim(set)
	s.arrive(Arrival{Lane: LaneFresh})
	var ids []uint64
	for range 20 {
		ids = append(ids, s.arrive(Arrival{Lane: LaneFresh}).ID)
	}
	for _, id := range ids[:19] {
		s.g.Gone(id)
	}
	if got := s.step(100 * time.Millisecond); len(got) != 1 || got[0].ID != ids[19] || got[0].Verdict != Admit {
		t.Errorf("%+v", got)
	}
	if next := s.g.Next(s.now); next < time.Hour {
		t.Errorf("nobody waits, and Next is %v", next)
	}
}

func TestTheCeilingFallsFastAndRisesSlowly(t *testing.T) {
	s := newSim(Default())
	s.g.Observe(Signals{BackfillLag: 1100 * time.Millisecond}, s.now)
	if st := s.g.Status(0, s.now); st.ResumePerSecond != 30 || st.FreshPerSecond != 10 || st.MovedPerSecond != 500 {
		t.Errorf("a lag of over a second: %+v", st)
	}
	for range 18 {
		s.now = s.now.Add(ceilingEvery)
		s.g.Observe(Signals{}, s.now)
	}
	if c := s.g.Ceiling(); c < 0.999 {
		t.Errorf("after 9 s the ceiling is %v", c)
	}
	s.now = s.now.Add(ceilingEvery)
	s.g.Observe(Signals{LoopDelay: time.Second}, s.now)
	if c := s.g.Ceiling(); c != ceilingFall {
		t.Errorf("slow loops: %v", c)
	}
	off := Default()
	off.Adaptive = false
	s.g.Set(off, Capacity{MaxConns: 9}, s.now)
	if st := s.g.Status(0, s.now); st.FreshPerSecond != 100 || st.Ceiling != 1 {
		t.Errorf("off: %+v", st)
	}
}

func TestShareCountsLostMembersForTenMinutes(t *testing.T) {
	var s Share
	now := epoch
	peers := func(ids ...string) (p []Peer) {
		for _, id := range ids {
			p = append(p, Peer{ID: id})
		}
		return p
	}
	check := func(want int) {
		t.Helper()
		if got := s.Members(now); got != want {
			t.Errorf("%d members, want %d", got, want)
		}
	}
	check(1)
	s.Seen(peers("a", "b", "c"), now)
	check(3)
	s.Seen(peers("a", "b"), now) // c is lost
	check(3)
	s.Seen(append(peers("a"), Peer{ID: "b", Draining: true}), now)
	check(3)
	s.Seen(peers("a"), now) // b left in order
	check(2)
	s.Seen(peers("a", "d"), now) // d takes the place of c
	check(2)
	s.Seen(peers("a"), now)
	now = now.Add(memberMemory)
	s.Seen(peers("a"), now)
	check(1)
	if r := s.of(100, 60, now); r != 60 {
		t.Errorf("share %v", r)
	}
}
