package gateway

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/door"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// counts are what an edge says of its conns.
func (w *world) counts() string {
	return fmt.Sprintf("%d conns, %d superseded", w.edge.counts.conns.Load(), w.edge.counts.superseded.Load())
}

func (w *world) wantCounts(conns, superseded int) {
	w.t.Helper()
	want := fmt.Sprintf("%d conns, %d superseded", conns, superseded)
	eventually(w.t, want+" (now "+w.counts()+")", func() bool { return w.counts() == want })
}

func TestTheConnWithTheHighestAttemptCountsAndTheOtherDeliversOn(t *testing.T) {
	for _, loops := range []int{1, 2} {
		t.Run(fmt.Sprint(loops, " loops"), func(t *testing.T) {
			w := newResuming(t, func(c *Config, _ *Deps) { c.Loops = loops })
			token := tokenOf(t, nil)
			old, hello := w.welcomed(byToken(token) + `,"attempt":1` + subscribing("chat:1"))
			w.wantCounts(1, 0)
			young, _ := w.welcomed(byTicket(hello, 2) + subscribing("chat:1"))
			w.wantCounts(1, 1)
			w.publish("chat:1", "1")
			old.expectEvents("chat:1", 1, 1)
			young.expectEvents("chat:1", 1, 1)
			old.send(`{"type":"ping","id":2}`)
			old.expect(`{"type":"pong"}`)
			old.conn.Close()
			w.wantCounts(1, 0)
			// One that comes late with a lower attempt does not count; it lives on as well.
			late, _ := w.welcomed(byTicket(hello, 1) + subscribing("chat:1"))
			w.wantCounts(1, 1)
			w.publish("chat:1", "2")
			late.expectEvents("chat:1", 2, 2)
			young.expectEvents("chat:1", 2, 2)
			late.conn.Close()
			young.conn.Close()
			w.wantCounts(0, 0)
			if m, c := w.edge.counts.movable.Load(), w.edge.counts.critical.Load(); m != 0 || c != 0 {
				t.Errorf("%d movable, %d critical are left", m, c)
			}
			if n := w.indexed(); n != 0 {
				t.Errorf("%d sessions are left in the index", n)
			}
		})
	}
}

func (w *world) indexed() (n int) {
	w.onLoops(func(l *loop) {
		w.set(func() { n += l.index.n })
	})
	return n
}

func TestOfEqualAttemptsTheLaterCounts(t *testing.T) {
	for _, loops := range []int{1, 2} {
		w := newResuming(t, func(c *Config, _ *Deps) { c.Loops = loops })
		_, hello := w.welcomed(byToken(tokenOf(t, nil)) + `,"attempt":1`)
		for n := 1; n <= 3; n++ {
			w.welcomed(byTicket(hello, 1))
			w.wantCounts(1, n)
			w.onSessions(func(c *conn) {
				if c.superseded != (c.session.order <= uint32(n)) {
					t.Errorf("%d loops: of %d the one of order %d: superseded %v", loops, n+1, c.session.order, c.superseded)
				}
			})
		}
	}
}

func TestALeftConnIsClosedAtItsDeadline(t *testing.T) {
	w := newResuming(t, nil)
	old, hello := w.welcomed(byToken(tokenOf(t, nil)) + `,"attempt":1`)
	young, _ := w.welcomed(byTicket(hello, 2))
	w.wantCounts(1, 1)
	w.onSessions(func(c *conn) {
		if c.superseded {
			if left := c.deadline - c.loop.seconds(); left > supersededTime || left < supersededTime-patienceSeconds {
				t.Errorf("%d s are left", left)
			}
			c.deadline = 1
		}
	})
	old.expect(`{"type":"error","close":4006,"temporary":true}`)
	old.expectClose(4006)
	old.conn.Close()
	w.wantCounts(1, 0)
	young.send(`{"type":"ping","id":2}`)
	young.expect(`{"type":"pong"}`)
}

const patienceSeconds = 10

func TestALeftConnTakesNoRoom(t *testing.T) {
	w := newResuming(t, func(c *Config, _ *Deps) { c.MaxConns, c.Margin = 21, 1 })
	token := tokenOf(t, nil)
	_, hello := w.welcomed(byToken(token) + `,"attempt":1`)
	for n := 2; n <= 3; n++ {
		_, hello = w.welcomed(byTicket(hello, n))
	}
	w.wantCounts(1, 2)
	// They are bounded: past an eighth of the capacity the left one is closed at once.
	last := w.connect(byTicket(hello, 4))
	last.expect(`{"type":"connected"}`)
	w.wantCounts(1, 3)
	closing := 0
	w.onSessions(func(c *conn) {
		if c.closing {
			w.set(func() { closing++ })
		}
	})
	if closing != 1 {
		t.Errorf("%d conns are being closed", closing)
	}
}

func TestASessionIsTakenOverAcrossEdges(t *testing.T) {
	messenger := new(party)
	edge := func(id string) *resuming {
		return newResuming(t, func(c *Config, d *Deps) { c.ID, d.Messenger = id, messenger })
	}
	a, b := edge("edge-a"), edge("edge-b")
	eventually(t, "both hear", func() bool { messenger.mu.Lock(); defer messenger.mu.Unlock(); return len(messenger.ears) == 2 })
	old, hello := a.welcomed(byToken(tokenOf(t, nil)) + `,"attempt":1` + subscribing("chat:1"))
	young, there := b.welcomed(byTicket(hello, 2))
	if there["session"] != hello["session"] || there["node"] != "edge-b" {
		t.Errorf("got %s", there)
	}
	a.wantCounts(0, 1)
	b.wantCounts(1, 0)
	a.publish("chat:1", "1")
	old.expectEvents("chat:1", 1, 1)
	// A late lower attempt is told by the edge that knows better.
	a.welcomed(byTicket(hello, 1))
	a.wantCounts(0, 2)
	b.wantCounts(1, 0)
	young.send(`{"type":"ping","id":2}`)
	young.expect(`{"type":"pong"}`)
}

func TestALostTakeoverHarmsNobody(t *testing.T) {
	messenger := &party{deaf: true}
	a := newResuming(t, func(c *Config, d *Deps) { c.ID, d.Messenger = "edge-a", messenger })
	b := newResuming(t, func(c *Config, d *Deps) { c.ID, d.Messenger = "edge-b", messenger })
	old, hello := a.welcomed(byToken(tokenOf(t, nil)) + `,"attempt":1` + subscribing("chat:1"))
	b.welcomed(byTicket(hello, 2))
	eventually(t, "it was said", func() bool { messenger.mu.Lock(); defer messenger.mu.Unlock(); return messenger.said > 0 })
	a.publish("chat:1", "1")
	old.expectEvents("chat:1", 1, 1)
	a.wantCounts(1, 0) // it counts until its client closes it
	old.conn.Close()
	a.wantCounts(0, 0)
}

func TestDamagedTakeoversChangeNothing(t *testing.T) {
	w := newResuming(t, nil)
	_, hello := w.welcomed(byToken(tokenOf(t, nil)) + `,"attempt":1`)
	id, _ := parseSession(hello["session"].(string))
	say := func(edge string, sessions []byte) {
		message, err := proto.Marshal(&gatewayv1.Takeovers{Edge: edge, Sessions: sessions})
		if err != nil {
			t.Fatal(err)
		}
		w.edge.takeovers.heard(message)
	}
	higher := binary.BigEndian.AppendUint64(id[:], 9)
	w.edge.takeovers.heard([]byte("\xff\xff"))
	say("edge-x", higher[:20])
	say("edge-x", nil)
	say("edge-1", higher) // our own words
	w.onLoops(func(*loop) {})
	if got := w.counts(); got != "1 conns, 0 superseded" {
		t.Error(got)
	}
	say("edge-x", higher)
	w.wantCounts(0, 1)
	say("edge-x", higher)
	w.onLoops(func(*loop) {})
	w.wantCounts(0, 1)
}

func TestTakeoversAreBounded(t *testing.T) {
	var q takeovers
	for i := range takeoversPending + 5 {
		if ok := q.add(&session{attempt: uint64(i)}); ok != (i < takeoversPending) {
			t.Fatalf("takeover %d: %v", i, ok)
		}
		if ok := q.spend(uint64(i)); ok != (i < takeoversPending) {
			t.Fatalf("ticket %d: %v", i, ok)
		}
	}
	sessions, spent := q.take()
	if n := len(sessions); n != takeoversPending*takeoverBytes {
		t.Errorf("%d bytes", n)
	}
	if n := len(spent); n != takeoversPending*door.MarkBytes {
		t.Errorf("%d bytes of tickets", n)
	}
}

func TestWhoYieldsToWhom(t *testing.T) {
	for _, x := range []struct {
		name        string
		mine, heard uint64
		later       bool
		want        takeoverVerdict
	}{
		{"a higher one came", 1, 2, true, takeoverYields},
		{"a lower one came late", 2, 1, false, takeoverAnswers},
		{"equal, and the other is later", 3, 3, false, takeoverYields},
		{"equal, and the other is earlier", 3, 3, true, takeoverStays},
	} {
		if got := decideTakeover(x.mine, x.heard, x.later); got != x.want {
			t.Errorf("%s: got %d, want %d", x.name, got, x.want)
		}
	}
}

// Two edges whose conns have equal attempts hear each other at the same time: never
// do both yield.
func TestEdgesThatTieNeverBothYield(t *testing.T) {
	messenger := &party{deaf: true}
	a := newResuming(t, func(c *Config, d *Deps) { c.ID, d.Messenger = "edge-a", messenger })
	b := newResuming(t, func(c *Config, d *Deps) { c.ID, d.Messenger = "edge-b", messenger })
	_, hello := a.welcomed(byToken(tokenOf(t, nil)) + `,"attempt":1`)
	a.welcomed(byTicket(hello, 2))
	b.welcomed(byTicket(hello, 2))
	a.wantCounts(1, 1)
	id, _ := parseSession(hello["session"].(string))
	notice := binary.BigEndian.AppendUint64(id[:], 2)
	for from, to := range map[string]*resuming{"edge-a": b, "edge-b": a} {
		message, err := proto.Marshal(&gatewayv1.Takeovers{Edge: from, Sessions: notice})
		if err != nil {
			t.Fatal(err)
		}
		to.edge.takeovers.heard(message)
		to.onLoops(func(*loop) {})
	}
	if n := a.edge.counts.conns.Load() + b.edge.counts.conns.Load(); n == 0 {
		t.Error("no conn of the session counts any more")
	}
}

// The index against a map, through growth and decay.
func TestTheIndexFindsWhatAMapFinds(t *testing.T) {
	l := &loop{}
	var x sessionIndex
	model := map[[16]byte]*conn{}
	var ids [][16]byte
	for range 3_000 {
		var id [16]byte
		binary.LittleEndian.PutUint64(id[:], rand.Uint64N(500)) // collide
		binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
		ids = append(ids, id)
	}
	for step := range 40_000 {
		id := ids[rand.IntN(len(ids))]
		grow := (step/10_000)%2 == 0
		switch have := model[id]; {
		case have == nil && (grow || rand.IntN(4) == 0):
			c := &conn{token: uint64(len(l.slots)), session: &session{id: id, claims: auth.Anonymous()}}
			l.slots = append(l.slots, c)
			x.put(l.slots, c)
			model[id] = c
		case have != nil && (!grow || rand.IntN(4) == 0):
			x.remove(l.slots, have)
			delete(model, id)
		}
		if probe := ids[rand.IntN(len(ids))]; x.find(l.slots, &probe) != model[probe] {
			t.Fatalf("step %d: found %p, want %p", step, x.find(l.slots, &probe), model[probe])
		}
		if x.n != len(model) || x.n*4 > len(x.table)*3 {
			t.Fatalf("step %d: %d entries of %d in a table of %d", step, x.n, len(model), len(x.table))
		}
	}
	for id, c := range model {
		x.remove(l.slots, c)
		delete(model, id)
	}
	if x.n != 0 || len(x.table) > leastIndex {
		t.Errorf("%d entries, a table of %d", x.n, len(x.table))
	}
}

func BenchmarkSessionIndex(b *testing.B) {
	l := &loop{}
	var x sessionIndex
	for i := range 10_000 {
		c := &conn{token: uint64(i), session: &session{id: newSessionID()}}
		l.slots = append(l.slots, c)
		x.put(l.slots, c)
	}
	i := 0
	for b.Loop() {
		i++
		x.find(l.slots, &l.slots[i%len(l.slots)].session.id)
	}
	b.ReportMetric(float64(4*len(x.table))/float64(x.n), "B/session")
}
