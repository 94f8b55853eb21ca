package admission

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	known   = netip.MustParseAddr("192.0.2.1")
	unknown = netip.MustParseAddr("192.0.2.2")
)

func TestHandshakesKeepTheirBudgetWhateverArrives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := float64(rapid.IntRange(1, 500).Draw(t, "rate"))
		h := NewHandshakes(rate, time.Second, 50, epoch)
		h.Expect([]netip.Addr{known}, epoch.Add(time.Minute), epoch)
		now, id := epoch, uint64(0)
		var begun []time.Time
		open := make(map[uint64]bool)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 4).Draw(t, "what") == 0 {
				h.Gone(id)
				delete(open, id)
			}
			id++
			switch h.Arrive(id, rapid.SampledFrom([]netip.Addr{known, unknown}).Draw(t, "from"), now) {
			case Admit:
				begun = append(begun, now)
			case Wait:
				open[id] = true
			}
			end := func(id uint64) {
				if !open[id] {
					t.Fatalf("%d was not waiting", id)
				}
				delete(open, id)
			}
			h.Serve(now, func(id uint64) { end(id); begun = append(begun, now) }, end)
			if h.Waiting() != len(open) || h.Waiting() > 50 {
				t.Fatalf("%d wait, %d are known", h.Waiting(), len(open))
			}
		}
		for i, from := range begun {
			for j := i; j < len(begun); j++ {
				most := max(rate/10, 1) + rate*begun[j].Sub(from).Seconds()
				if float64(j-i+1) > most+1e-6 {
					t.Fatalf("%d handshakes in %v at %v a second", j-i+1, begun[j].Sub(from), rate)
				}
			}
		}
	})
}

func TestAddressesOfConfirmedGrantsPassFirst(t *testing.T) {
	h := NewHandshakes(10, 3*time.Second, 100, epoch)
	h.Expect([]netip.Addr{known}, epoch.Add(time.Minute), epoch)
	for id := range uint64(10) {
		h.Arrive(id+1, unknown, epoch)
	}
	if v := h.Arrive(100, known, epoch); v != Wait {
		t.Fatalf("it is to %v", v)
	}
	var begun []uint64
	h.Serve(epoch.Add(100*time.Millisecond), func(id uint64) { begun = append(begun, id) }, func(uint64) {})
	if !slices.Equal(begun, []uint64{100}) {
		t.Fatalf("first came %v", begun)
	}
}

func TestWhoWaitsTooLongForAHandshakeIsReset(t *testing.T) {
	h := NewHandshakes(1, 2*time.Second, 3, epoch)
	verdicts := make([]Verdict, 5)
	for id := range verdicts {
		verdicts[id] = h.Arrive(uint64(id), unknown, epoch)
	}
	if !slices.Equal(verdicts, []Verdict{Admit, Wait, Wait, Wait, Refuse}) {
		t.Fatalf("%v", verdicts)
	}
	var begun, reset []uint64
	for ms := range 31 {
		h.Serve(epoch.Add(time.Duration(ms)*100*time.Millisecond),
			func(id uint64) { begun = append(begun, id) }, func(id uint64) { reset = append(reset, id) })
	}
	if !slices.Equal(begun, []uint64{1}) || !slices.Equal(reset, []uint64{2, 3}) {
		t.Fatalf("begun %v, reset %v", begun, reset)
	}
}
