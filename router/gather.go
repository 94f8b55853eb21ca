package router

import "time"

// readFill is how many questions are worth a batch at any time.
const readFill = 400

// gather says when a batch of reads begins. The first question after a rest goes after
// a short window. While questions keep coming, a batch begins when it is full or when a
// pace has passed since the one before: what a storm of n questions costs the store
// is then n / fill and what time brings, not n. The price is a wait of at most a pace.
//
// It is pure: times are passed in, and it is owned by whoever guards it.
type gather struct {
	window time.Duration // after the first question
	pace   time.Duration // between two batches that are not full
	fill   int           // questions of a full batch
	last   time.Time     // when a batch was begun
}

func newGather(cfg *Config) gather {
	return gather{window: cfg.ReadWindow, pace: cfg.ReadPace, fill: min(readFill, cfg.ReadRanges)}
}

// due is when a batch may begin, given the age of the oldest question and how many
// wait, at least one.
func (g *gather) due(oldest time.Time, waiting int) time.Time {
	if waiting >= g.fill {
		return time.Time{}
	}
	at := oldest.Add(g.window)
	if next := g.last.Add(g.pace); !g.last.IsZero() && next.After(at) {
		return next
	}
	return at
}

func (g *gather) began(now time.Time) { g.last = now }
