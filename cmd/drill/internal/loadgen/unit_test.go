package loadgen

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/cmd/drill/internal/floor"
	"github.com/spillway-io/spillway/gateway/client/machine"
)

func TestHistogramIsWithinSixPercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 100).Draw(t, "ns")
		var a, b Histogram
		for i, v := range values {
			if i%2 == 0 {
				a.add(v)
			} else {
				b.add(v)
			}
		}
		text, err := json.Marshal(&b)
		if err != nil {
			t.Fatal(err)
		}
		var read Histogram
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		a.Merge(&read)
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.95, 1} {
			want := values[min(int(q*float64(len(values))), len(values)-1)] / 1000
			got := a.Quantile(q).Microseconds()
			if got < want || got > want+want/16+1 {
				t.Fatalf("q %v: %d us, want %d", q, got, want)
			}
		}
		if a.Count() != uint64(len(values)) || a.Max().Microseconds() != values[len(values)-1]/1000 {
			t.Fatalf("count %d, max %v", a.Count(), a.Max())
		}
	})
}

func TestTimersComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		conns := make([]timer, 20)
		var h timers
		for i := range conns {
			conns[i].heapAt = -1
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			c := &conns[rapid.IntRange(0, len(conns)-1).Draw(t, "conn")]
			if rapid.Bool().Draw(t, "set") {
				h.set(c, rapid.Int64Range(0, 50).Draw(t, "due"))
			} else {
				h.clear(c)
			}
		}
		last := int64(-1)
		for h.next() >= 0 {
			c := h[0]
			h.clear(c)
			if c.due < last || c.heapAt != -1 {
				t.Fatalf("%d after %d", c.due, last)
			}
			last = c.due
		}
		for i := range conns {
			if conns[i].heapAt != -1 {
				t.Fatal("a timer was lost")
			}
		}
	})
}

func TestReportsMergeByTime(t *testing.T) {
	start := time.Unix(1000, 0)
	a := &Report{Start: start, Arrivals: []uint32{1, 1}, Total: Counts{Lost: 1}, Codes: map[string]uint64{"4001": 1}}
	a.Merge(&Report{Start: start.Add(410 * time.Millisecond), Arrivals: []uint32{2, 2}, Total: Counts{Lost: 2, Gaps: 1}, Codes: map[string]uint64{"4001": 2}})
	if !slices.Equal(a.Arrivals, []uint32{1, 1, 2, 2}) || a.Total.Lost != 3 || a.Total.Gaps != 1 || a.Codes["4001"] != 3 {
		t.Errorf("%+v", a)
	}
}

func TestSourcesHoldFourThousandEach(t *testing.T) {
	for n, want := range map[int]int{1: 1, 4000: 1, 4001: 2, 15_000: 4} {
		if got := Loopback(3, n); len(got) != want || got[0] != "127.0.13.1" {
			t.Errorf("%d clients: %v", n, got)
		}
	}
}

func FuzzCutFrame(f *testing.F) {
	f.Add(floor.AppendFrame(nil, []byte("hello")))
	f.Add([]byte{0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, payload, n, err := cutFrame(b)
		if err == nil && (n > len(b) || len(payload) > n) {
			t.Fatalf("%d of %d bytes", n, len(b))
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	l, c, k := onPaper(b, Policy{Kind: "sdk"})
	l.cfg.CheckPayload = true
	text := make([][]byte, 1000)
	for i := range text {
		text[i] = eventText("chat:1", uint64(i+1), uint64(i+1))
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%len(text) == 0 { // begin again
			c.subs[0].Since(machine.Position{Epoch: "e1"})
			c.subs[0].seq, k.subs[0].end = 0, 0
		}
		if err := l.text(k, text[n%len(text)]); err != nil {
			b.Fatal(err)
		}
	}
}
