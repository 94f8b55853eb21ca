package backfill

import (
	"testing"
	"time"
)

func testConfig() Config {
	return Config{
		Reads: 4, Window: 2 * time.Millisecond, Pace: 200 * time.Millisecond, Ranges: 500, Bytes: 64 << 20, Queue: 100_000, Deadline: 5 * time.Second,
	}
}

// What a storm costs the store grows with time and full batches, never with askers.
func TestBatchesDoNotGrowWithQuestions(t *testing.T) {
	cfg := testConfig()
	for _, perSecond := range []int{1, 4, 50, 300, 3_000, 30_000} {
		g := newGather(&cfg)
		start := time.Unix(1_700_000_000, 0)
		const seconds = 4
		var waiting, asked, batches, longest int
		var oldest time.Time
		for ms := range seconds * 1000 {
			now := start.Add(time.Duration(ms) * time.Millisecond)
			for asked < ms*perSecond/1000 {
				if waiting++; waiting == 1 {
					oldest = now
				}
				asked++
			}
			if waiting > 0 && !g.due(oldest, waiting).After(now) {
				g.began(now)
				longest = max(longest, int(now.Sub(oldest)/time.Millisecond))
				batches++
				waiting = max(0, waiting-cfg.Ranges)
				oldest = now
			}
		}
		if bound := burst + int(seconds*time.Second/cfg.Pace) + asked/g.fill; batches > bound || batches > asked {
			t.Errorf("%d questions a second: %d batches, at most %d allowed", perSecond, batches, bound)
		}
		if most := int((cfg.Pace + cfg.Window) / time.Millisecond); longest > most {
			t.Errorf("%d questions a second: one waited %d ms, more than a pace (%d)", perSecond, longest, most)
		}
		if alone := int(cfg.Window / time.Millisecond); perSecond <= 4 && longest > alone {
			t.Errorf("%d questions a second: one waited %d ms, and it was alone", perSecond, longest)
		}
	}
}

// Who reads page after page alone is not slowed down by the pace at once, and always
// again after a rest.
func TestAFewReadsInARowDoNotWait(t *testing.T) {
	cfg := testConfig()
	g := newGather(&cfg)
	now := time.Unix(1_700_000_000, 0)
	for round := range 3 {
		for i := range burst {
			if at := g.due(now, 1); at.Sub(now) != cfg.Window {
				t.Errorf("round %d, read %d waits for %v", round, i, at.Sub(now))
			}
			now = now.Add(cfg.Window)
			g.began(now)
		}
		if at := g.due(now, 1); at.Sub(now) <= cfg.Window {
			t.Errorf("round %d: the burst has no end", round)
		}
		now = now.Add(burst * cfg.Pace)
	}
}

// With batches of one, a question is a query: nothing waits for company.
func TestBatchesOfOneDoNotWait(t *testing.T) {
	cfg := testConfig()
	cfg.Ranges = 1
	g := newGather(&cfg)
	now := time.Unix(1_700_000_000, 0)
	g.began(now)
	if at := g.due(now, 1); at.After(now) {
		t.Errorf("it waits for %v", at.Sub(now))
	}
}
