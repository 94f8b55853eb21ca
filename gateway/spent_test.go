package gateway

import (
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/ticket"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// neighbours are two edges of a region that hear each other.
func neighbours(t *testing.T, messenger *party, change func(*Config, *Deps)) (a, b *resuming) {
	t.Helper()
	edge := func(id string) *resuming {
		return newResuming(t, func(c *Config, d *Deps) {
			change(c, d)
			c.ID, d.Messenger = id, messenger
		})
	}
	a, b = edge("edge-a"), edge("edge-b")
	eventually(t, "both hear", func() bool { messenger.mu.Lock(); defer messenger.mu.Unlock(); return len(messenger.ears) == 2 })
	return a, b
}

func (r *resuming) heardBatch(m *gatewayv1.Takeovers) {
	r.t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	r.edge.takeovers.heard(b)
}

func (r *resuming) heardOf(tickets int) {
	r.t.Helper()
	eventually(r.t, "it has heard of used tickets", func() bool { return r.edge.gate.Status().SpentBytes >= 64*tickets })
}

// order names the conns as their first answers come.
func order(t *testing.T, conns map[string]net.Conn) (names []string) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	for name, c := range conns {
		wait.Go(func() { // ends with the answer or the conn's deadline
			if n, _ := c.Read(make([]byte, 4096)); n > 0 {
				mu.Lock()
				defer mu.Unlock()
				names = append(names, name)
			}
		})
	}
	wait.Wait()
	if len(names) != len(conns) {
		t.Fatalf("only %v were answered", names)
	}
	return names
}

func TestAPassIsGoodOnceInItsRegion(t *testing.T) {
	a, b := neighbours(t, new(party), lanes(3, 1, 3*time.Second))
	pass := func(nonce uint64) string {
		return a.sealed(t, ticket.Ticket{
			Kind: ticket.Pass, Edge: "edge-b", Lane: uint8(admission.LaneFresh), Nonce: nonce,
			SlotFrom: time.Now(), SlotUntil: time.Now().Add(admission.PassLife),
		}, nil)
	}
	used, good := pass(7), pass(8)
	if !a.hear(a.knock(used)).admitted {
		t.Fatal("refused with a pass, alone")
	}
	b.heardOf(1)
	if !b.hear(b.knock()).admitted { // the burst
		t.Fatal("refused, alone")
	}
	conns := map[string]net.Conn{}
	for _, name := range []string{"1", "2", "3"} {
		conns[name] = b.knock()
	}
	eventually(t, "newcomers wait", func() bool {
		return b.edge.gate.Status().Waiting[admission.LaneFresh]+b.admitted(admission.LaneFresh) >= 4
	})
	conns["used"], conns["good"] = b.knock(used), b.knock(good)
	at := map[string]int{}
	names := order(t, conns)
	for i, name := range names {
		at[name] = i
	}
	if at["good"] > 2 || at["used"] < at["good"] || at["used"] < 3 {
		t.Errorf("answered in the order %v: the pass that was used at the other edge must come last, the good one passes newcomers", names)
	}
	if n := b.metric("spent_twice_tickets_total"); n != 0 {
		t.Errorf("%v tickets were used twice", n)
	}
}

// A client that was moved has one place of its operation's grants, however many edges
// it calls at and however often. Tickets with a target are good there only, and what
// the bus loses stays good.
func TestAMovedTicketTakesOnePlaceInItsRegion(t *testing.T) {
	messenger := new(party)
	a, b := neighbours(t, messenger, lanes(100, 100, 0))
	for _, w := range []*resuming{a, b} {
		o := w.edge.gate.Offer(&gatewayv1.GrantRequest{Operation: "op", Edge: "edge-x", Number: 1, Movable: 5, WindowMs: 1000, Region: "default"})
		if o.Movable != 5 || !w.edge.gate.Confirm(&gatewayv1.GrantConfirm{Operation: "op", Edge: "edge-x", Number: 1, Movable: 5, LastSlotMs: 20_000}).Held {
			t.Fatalf("no grant: %v", o)
		}
	}
	told := time.Now()
	ticketOf := func(session byte, target string) string {
		told = told.Add(time.Millisecond) // each in a slot of its own
		return a.sealed(t, ticket.Ticket{
			Kind: ticket.Moved, Edge: "edge-x", Operation: "op", Target: target, HasSession: true, Session: [16]byte{session},
			SlotFrom: told, SlotUntil: time.Now().Add(time.Minute),
		}, auth.Anonymous())
	}
	want := func(w *resuming, text string, moved, resumed int) {
		t.Helper()
		if v := w.hear(w.knock(text)); !v.admitted {
			t.Fatalf("refused: %q", v.all)
		}
		eventually(t, "it is counted", func() bool { return w.admitted(admission.LaneMoved)+w.admitted(admission.LaneResume) == moved+resumed })
		if m, r := w.admitted(admission.LaneMoved), w.admitted(admission.LaneResume); m != moved || r != resumed {
			t.Errorf("%s: %d moved, %d resumed, want %d, %d", w.edge.cfg.ID, m, r, moved, resumed)
		}
	}
	greedy := ticketOf(1, "")
	want(a, greedy, 1, 0)
	want(a, greedy, 1, 1)
	want(a, greedy, 1, 2)
	b.heardOf(1)
	want(b, greedy, 0, 1)
	want(b, greedy, 0, 2)
	want(b, ticketOf(2, ""), 1, 2) // another client, or the same told anew

	a.heardOf(2)
	want(a, ticketOf(3, "edge-a"), 2, 2)
	want(a, ticketOf(3, "edge-a"), 3, 2) // told in another slot: a place of its own
	want(b, ticketOf(3, "edge-a"), 1, 3)

	messenger.mu.Lock()
	messenger.deaf = true
	messenger.mu.Unlock()
	lost := ticketOf(4, "")
	want(a, lost, 4, 2)
	want(b, lost, 2, 3)
	want(b, lost, 2, 4)
}

// Edges that took the same ticket before they heard of each other say so.
func TestATicketUsedTwiceIsCounted(t *testing.T) {
	messenger := &party{deaf: true}
	a, b := neighbours(t, messenger, lanes(100, 100, 0))
	pass := a.sealed(t, ticket.Ticket{Kind: ticket.Pass, Edge: "edge-a", Lane: uint8(admission.LaneFresh), Nonce: 7, SlotFrom: time.Now()}, nil)
	a.hear(a.knock(pass))
	b.hear(b.knock(pass))
	eventually(t, "both have said it", func() bool { messenger.mu.Lock(); defer messenger.mu.Unlock(); return messenger.said == 2 })
	var m gatewayv1.Takeovers
	m.Edge, m.Spent = "edge-b", []byte{0, 0, 0, 0, 0, 0, 0, 7}
	a.heardBatch(&m)
	if n := a.metric("spent_twice_tickets_total"); n != 1 {
		t.Errorf("%v counted", n)
	}
	m.Spent = m.Spent[:7]
	a.heardBatch(&m) // damaged
	m.Edge, m.Spent = "edge-a", []byte{0, 0, 0, 0, 0, 0, 0, 9}
	a.heardBatch(&m) // its own
	if n := a.edge.gate.Status().SpentBytes; n != 64 {
		t.Errorf("%d bytes, want one note", n)
	}
}
