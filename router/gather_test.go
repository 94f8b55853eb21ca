package router

import (
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// What a storm costs the store grows with time and full batches, never with askers.
func TestBatchesDoNotGrowWithQuestions(t *testing.T) {
	cfg := Default()
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
				waiting = max(0, waiting-cfg.ReadRanges)
				oldest = now
			}
		}
		if bound := readBurst + int(seconds*time.Second/cfg.ReadPace) + asked/g.fill; batches > bound || batches > asked {
			t.Errorf("%d questions a second: %d batches, at most %d allowed", perSecond, batches, bound)
		}
		if most := int((cfg.ReadPace + cfg.ReadWindow) / time.Millisecond); longest > most {
			t.Errorf("%d questions a second: one waited %d ms, more than a pace (%d)", perSecond, longest, most)
		}
		if alone := int(cfg.ReadWindow / time.Millisecond); perSecond <= 4 && longest > alone {
			t.Errorf("%d questions a second: one waited %d ms, and it was alone", perSecond, longest)
		}
	}
}

// Who reads page after page alone is not slowed down by the pace at once, and always
// again after a rest.
func TestAFewReadsInARowDoNotWait(t *testing.T) {
	cfg := Default()
	g := newGather(&cfg)
	now := time.Unix(1_700_000_000, 0)
	for round := range 3 {
		for i := range readBurst {
			if at := g.due(now, 1); at.Sub(now) != cfg.ReadWindow {
				t.Errorf("round %d, read %d waits for %v", round, i, at.Sub(now))
			}
			now = now.Add(cfg.ReadWindow)
			g.began(now)
		}
		if at := g.due(now, 1); at.Sub(now) <= cfg.ReadWindow {
			t.Errorf("round %d: the burst has no end", round)
		}
		now = now.Add(readBurst * cfg.ReadPace)
	}
}

// With batches of one, a question is a query: nothing waits for company.
func TestBatchesOfOneDoNotWait(t *testing.T) {
	cfg := Default()
	cfg.ReadRanges = 1
	g := newGather(&cfg)
	now := time.Unix(1_700_000_000, 0)
	g.began(now)
	if at := g.due(now, 1); at.After(now) {
		t.Errorf("it waits for %v", at.Sub(now))
	}
}

// A router that is new to a channel reads its head again for every answer, but not for
// every asker (I10).
func TestYoungRouterIsAskedByManyAndReadsRarely(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.OwnerRecheck = time.Hour })
	epoch := n.fill("chat:a", 5)
	e := n.sync()
	_, heads, reads := n.store.counts()
	const asks = 300 // with a window of 2 ms alone they cost a hundred reads and more
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range asks {
		<-tick.C
		a := position("chat:a", epoch, 3)
		a.Id = uint64(i + 1)
		if err := e.stream.Send(&gatewayv1.SyncRequest{Edge: "e1", Asks: []*gatewayv1.Ask{a}}); err != nil {
			t.Fatal(err)
		}
	}
	for got := 0; got < asks; {
		response, err := e.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range response.Answers {
			if got++; !a.Recovered || offsetsOf(a.Events) != "[4 5]" {
				t.Fatalf("answer %v", a)
			}
		}
	}
	bound := readBurst + 1 + int(time.Since(began)/n.cfg.ReadPace)
	if _, h, r := n.store.counts(); h != heads || r-reads > bound {
		t.Errorf("%d queries for %d asks of one channel in %v, at most %d allowed", r-reads+h-heads, asks, time.Since(began), bound)
	}
}
