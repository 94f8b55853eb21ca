//go:build !race

// The race detector lets sync.Pool forget at random.
package ticket

import "testing"

func TestOpenAllocatesTheTicketAndItsText(t *testing.T) {
	b := New("/spillway/c1", newRing())
	claims, _ := claimsOf(t, nil)
	text := mustSeal(t, b, Ticket{Kind: Resume, HasSession: true, Edge: "edge-1"}, claims)
	if n := testing.AllocsPerRun(100, func() { _, _ = b.Open(text, now) }); n > 2 {
		t.Errorf("%v allocations", n)
	}
	bad := text[:20] + "AAAA" + text[24:]
	if n := testing.AllocsPerRun(100, func() { _, _ = b.Open(bad, now) }); n > 1 {
		t.Errorf("%v allocations for one that is not good", n)
	}
}
