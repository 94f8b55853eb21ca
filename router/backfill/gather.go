package backfill

import "time"

// fillMost is how many questions are worth a batch at any time.
const fillMost = 400

// burst is how many batches that are not full may begin without a pace between
// them, after a rest: who reads page after page alone is not slowed down at once.
const burst = 5

// gather says when a batch of reads begins. A question goes after a short window. While
// questions keep coming, a batch begins when it is full, or a pace after the one before
// once a burst is used up: what a storm of n questions costs the store is then n / fill
// and what time brings, not n. The price is a wait of at most a pace.
//
// It is pure: times are passed in, and it is owned by whoever guards it.
type gather struct {
	window time.Duration // after the first question
	pace   time.Duration // between two batches that are not full
	fill   int           // questions of a full batch
	paid   time.Time     // until when the batches begun so far use up the pace
}

func newGather(cfg *Config) gather {
	return gather{window: cfg.Window, pace: cfg.Pace, fill: min(fillMost, cfg.Ranges)}
}

// due is when a batch may begin, given the age of the oldest question and how many
// wait, at least one.
func (g *gather) due(oldest time.Time, waiting int) time.Time {
	if waiting >= g.fill {
		return time.Time{}
	}
	at := oldest.Add(g.window)
	if next := g.paid.Add(-(burst - 1) * g.pace); next.After(at) {
		return next
	}
	return at
}

func (g *gather) began(now time.Time) {
	if g.paid.Before(now) {
		g.paid = now
	}
	g.paid = g.paid.Add(g.pace)
	if most := now.Add(burst * g.pace); g.paid.After(most) {
		g.paid = most // full batches are not held against the others
	}
}
