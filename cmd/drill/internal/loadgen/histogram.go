package loadgen

import (
	"encoding/json"
	"math/bits"
	"time"
)

// Histogram counts durations from 1 us to hours, each within 6 %.
type Histogram struct {
	counts [steps * (exponents + 1)]uint64
	total  uint64
	max    uint64 // us
}

const (
	steps     = 16 // of each power of two
	exponents = 32
)

func (h *Histogram) add(ns int64) {
	us := uint64(max(ns, 0)) / 1000
	h.counts[slot(us)]++
	h.total++
	h.max = max(h.max, us)
}

// slot: below 32 one for each microsecond, then 16 for each doubling.
func slot(us uint64) int {
	e := max(bits.Len64(us)-5, 0)
	if e >= exponents {
		return steps*(exponents+1) - 1
	}
	return e*steps + int(us>>e)
}

// upper is the largest value of a slot, in us.
func upper(i int) uint64 {
	if i < 2*steps {
		return uint64(i)
	}
	e := i/steps - 1
	return (uint64(i-e*steps)+1)<<e - 1
}

// Count of the durations.
func (h *Histogram) Count() uint64 { return h.total }

// Quantile q, 0 to 1; 0 of an empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	want, seen := uint64(q*float64(h.total)), uint64(0)
	for i, n := range h.counts {
		if seen += n; n > 0 && (seen > want || seen == h.total) {
			return time.Duration(min(upper(i), h.max)) * time.Microsecond
		}
	}
	return 0
}

// Max is the longest.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max) * time.Microsecond }

// Merge adds the durations of another.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
	h.max = max(h.max, o.max)
}

type histogramJSON struct {
	Max   uint64      `json:"max_us"`
	P50   uint64      `json:"p50_us"` // for readers; the rest is derived from slots
	P95   uint64      `json:"p95_us"`
	P99   uint64      `json:"p99_us"`
	Slots [][2]uint64 `json:"slots"` // number, count
}

// MarshalJSON writes quantiles for readers and the slots for Merge.
func (h *Histogram) MarshalJSON() ([]byte, error) {
	us := func(q float64) uint64 { return uint64(h.Quantile(q).Microseconds()) }
	out := histogramJSON{Max: h.max, P50: us(0.5), P95: us(0.95), P99: us(0.99), Slots: [][2]uint64{}}
	for i, n := range h.counts {
		if n > 0 {
			out.Slots = append(out.Slots, [2]uint64{uint64(i), n})
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (h *Histogram) UnmarshalJSON(b []byte) error {
	var in histogramJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*h = Histogram{max: in.Max}
	for _, s := range in.Slots {
		h.counts[min(s[0], uint64(len(h.counts)-1))] += s[1]
		h.total += s[1]
	}
	return nil
}
