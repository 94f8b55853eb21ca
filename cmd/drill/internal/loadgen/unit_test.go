package loadgen

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPolicies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	policy := func(s PolicySpec) Policy {
		p, err := s.New()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	sdk, fixed := policy(PolicySpec{Kind: "sdk"}), policy(PolicySpec{Kind: "fixed", Interval: 5 * time.Second})
	doubling := policy(PolicySpec{Kind: "exponential", Base: time.Second, Cap: 10 * time.Second})
	for range 1000 {
		for failures, most := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second} {
			if d, again := sdk.Next(End{Failures: failures}, r); !again || d < 0 || d >= most {
				t.Fatalf("sdk after %d failures: %v", failures, d)
			}
		}
		if d, _ := sdk.Next(End{Failures: 60}, r); d >= 30*time.Second {
			t.Fatalf("sdk passes its cap: %v", d)
		}
		if d, _ := sdk.Next(End{RetryWindow: 3 * time.Second}, r); d >= 3*time.Second {
			t.Fatalf("sdk outside the window: %v", d)
		}
		if d, _ := fixed.Next(End{Failures: 9, Wait: time.Hour, Code: 4200}, r); d != 5*time.Second {
			t.Fatalf("fixed: %v", d)
		}
	}
	if d, again := sdk.Next(End{Wait: 7 * time.Second}, r); d != 7*time.Second || !again {
		t.Errorf("sdk does not keep the server's wait: %v", d)
	}
	if d, _ := sdk.Next(End{Wait: 4 * time.Second, Header: true}, r); d < 4*time.Second || d >= 8*time.Second {
		t.Errorf("sdk after a Retry-After of 4 s: %v", d)
	}
	longest := time.Duration(0)
	for range 1000 { // a client that superseded itself is alone: no window
		d, _ := sdk.Next(End{Code: 4006, RetryWindow: 9 * time.Second}, r)
		longest = max(longest, d)
	}
	if longest >= 500*time.Millisecond {
		t.Errorf("sdk spreads an end of its own over the window: %v", longest)
	}
	if _, again := sdk.Next(End{Code: 4200}, r); again {
		t.Error("sdk comes back after 4200")
	}
	for failures, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if d, _ := doubling.Next(End{Failures: failures}, r); d != want*time.Second {
			t.Errorf("exponential after %d: %v", failures, d)
		}
	}
	for _, s := range []PolicySpec{{Kind: "odd"}, {Kind: "fixed"}} {
		if _, err := s.New(); err == nil {
			t.Errorf("%+v was taken", s)
		}
	}
}

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

func FuzzReadPayload(f *testing.F) {
	f.Add(AppendPayload(nil, "chat:1", 7, time.Unix(1, 2), 128), "chat:1")
	f.Add([]byte(`{"lg":"`), "")
	f.Fuzz(func(t *testing.T, b []byte, channel string) {
		seq, sent, ok := readPayload(b, []byte(channel))
		if !ok {
			return
		}
		if again := AppendPayload(nil, channel, seq, time.Unix(0, sent), len(b)); len(again) < MinPayloadBytes {
			t.Fatalf("%q", again)
		}
	})
}

func FuzzCutFrame(f *testing.F) {
	f.Add(appendServerFrame(nil, []byte("hello")))
	f.Add([]byte{0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, payload, n, err := cutFrame(b)
		if err == nil && (n > len(b) || len(payload) > n) {
			t.Fatalf("%d of %d bytes", n, len(b))
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	l := &loop{cfg: Config{CheckPayload: true}, start: time.Now(), channels: map[string]*channel{}, missing: map[missing]struct{}{}}
	c := &client{subs: []position{{channel: l.channel("bench:all"), known: true}}}
	k := &c.conns[0]
	*k = conn{client: c, fd: 1, state: up, subs: []stream{{live: true}}}
	frame := eventText("bench:all", 1, 1)
	b.ReportAllocs()
	for b.Loop() {
		c.subs[0].offset, k.subs[0] = 0, stream{live: true}
		if err := l.text(k, frame); err != nil {
			b.Fatal(err)
		}
	}
}
