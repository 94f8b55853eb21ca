package admission

import (
	"math"
	"time"
)

// bucket gives out tokens at a sustained rate: in any time T at most burst + rate *
// T of them. 0 <= tokens <= burst.
type bucket struct {
	rate   float64 // tokens a second
	burst  float64
	tokens float64
	at     time.Time // tokens is as of then
}

func newBucket(rate, burst float64, now time.Time) bucket {
	return bucket{rate: rate, burst: burst, tokens: burst, at: now}
}

// set changes rate and burst; what was earned until now stays, up to the burst.
func (b *bucket) set(rate, burst float64, now time.Time) {
	b.refill(now)
	b.rate, b.burst = rate, burst
	b.tokens = min(b.tokens, burst)
}

func (b *bucket) refill(now time.Time) {
	if dt := now.Sub(b.at); dt > 0 { // a clock that goes back earns nothing
		b.tokens = min(b.burst, b.tokens+b.rate*dt.Seconds())
		b.at = now
	}
}

// rounding is what sums of fractions may be short of a whole token.
const rounding = 1e-9

func (b *bucket) ready(now time.Time) bool {
	b.refill(now)
	return b.tokens >= 1-rounding
}

func (b *bucket) take() { b.tokens = max(b.tokens-1, 0) }

// until is how long the next whole token takes.
func (b *bucket) until(now time.Time) time.Duration {
	if b.ready(now) {
		return 0
	}
	if b.rate <= 0 {
		return math.MaxInt64
	}
	return seconds((1 - b.tokens) / b.rate)
}

func seconds(s float64) time.Duration {
	return time.Duration(math.Ceil(min(s, 1e6) * float64(time.Second)))
}
