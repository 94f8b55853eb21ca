package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// asyncTrial is one asynchronous router over a store that fails before, after and long
// after its commits, while another router writes to its rows, the view gives its
// channels away and back, too much is unwritten, and channels are evicted.
type asyncTrial struct {
	*node
	rng                          *rand.Rand // of the faults
	memory                       history.Store
	faults                       *faults
	another, flips, small, evict bool

	acked [asyncChannels][]string // data, in the order of publishing; each owned by its publisher
}

const asyncChannels = 3

func asyncChannel(i int) string { return fmt.Sprintf("later:%d", i) }

// In the end: history has no holes, no event twice, and the events of each publisher in
// their order; nobody was told of two events at one offset of an epoch, nor of any out of
// order; what was acked is stored, unless it may have been let go; nothing is counted
// as waiting that is not there. And it does end.
func TestAsyncHoldsItsPromisesOverAFaultyStore(t *testing.T) {
	for range 12 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { newAsyncTrial(t, seed).run(seed) })
	}
}

func newAsyncTrial(t *testing.T, seed uint64) *asyncTrial {
	rng := rand.New(rand.NewPCG(seed, 1))
	chance := func(n int) bool { return rng.IntN(n) == 0 }
	tr := &asyncTrial{rng: rng, memory: memory.New(memory.Default()), another: chance(2), flips: chance(3), small: chance(3), evict: chance(3)}
	tr.faults = &faults{Store: tr.memory, rate: []float64{0, 0.05, 0.2, 0.4}[rng.IntN(4)], rng: rand.New(rand.NewPCG(seed, 2))}
	tr.node = start(t, tr.faults, func(c *Config) {
		c.BatchEvents, c.TailEvents, c.TailAge = 1+rng.IntN(16), rng.IntN(30), time.Duration(1+rng.IntN(50))*time.Millisecond
		c.HandoverWait, c.HandoverGrace, c.HandoverTimeout = 5*time.Millisecond, 20*time.Millisecond, 30*time.Millisecond
		if tr.small {
			c.AsyncBytes = 600
		}
		if tr.evict {
			c.CacheBytes = 2500
		}
	})
	slow := rand.New(rand.NewPCG(seed, 3)) // the writer's alone
	tr.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		if slow.IntN(4) == 0 {
			time.Sleep(time.Duration(slow.IntN(20)) * time.Millisecond)
		}
		return next()
	})
	t.Logf("rate %v, another %v, flips %v, small %v, evict %v", tr.faults.rate, tr.another, tr.flips, tr.small, tr.evict)
	return tr
}

func (tr *asyncTrial) run(seed uint64) {
	over := make(chan struct{})
	var publishers, trouble sync.WaitGroup
	trouble.Go(func() { tr.trouble(over) })
	for i := range asyncChannels {
		publishers.Go(func() { tr.publish(i, rand.New(rand.NewPCG(seed, uint64(10+i)))) })
	}
	publishers.Wait()
	close(over)
	trouble.Wait()
	tr.faults.mu.Lock()
	tr.faults.rate = 0
	tr.faults.mu.Unlock()
	eventually(tr.t, "all is written", func() bool { return tr.sequencer.behind.queued.Load() == 0 })
	eventually(tr.t, "nothing is counted any more", func() bool {
		return tr.sequencer.behind.bytes.Load() == 0 && tr.sequencer.events.Load() == 0 && tr.sequencer.bytes.Load() == 0
	})
	for i := range asyncChannels {
		tr.checkStored(i)
		tr.checkBus(asyncChannel(i))
	}
}

func (tr *asyncTrial) publish(i int, rng *rand.Rand) {
	for k := range 60 {
		data, poison := fmt.Sprintf(`"%03d"`, k), rng.IntN(30) == 0
		if poison {
			data = fmt.Sprintf(`"%03d poison"`, k)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		_, err := tr.pub.Publish(ctx, &routerv1.PublishRequest{Publication: event(asyncChannel(i), data, "")})
		cancel()
		if err == nil && !poison { // which the bus may have acked
			tr.acked[i] = append(tr.acked[i], data)
		}
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(6)) * time.Millisecond)
		}
	}
}

func (tr *asyncTrial) trouble(over chan struct{}) {
	edge, revision := tr.sync(), int64(1)
	us, both := routerMember("r1", ""), routerMember("r2", "127.0.0.1:1")
	defer func() { tr.members.set(snapshotOf(revision+1, us)) }()
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(tr.rng.IntN(4)) * time.Millisecond):
		}
		channel := asyncChannel(tr.rng.IntN(asyncChannels))
		switch roll := tr.rng.IntN(30); {
		case roll == 0 && tr.flips:
			revision++
			tr.members.set(snapshotOf(revision, us, both))
		case roll == 1 && tr.flips:
			revision++
			tr.members.set(snapshotOf(revision, us))
		case roll == 2 && tr.another:
			tr.foreign(channel)
		case roll < 8:
			tr.look(edge, channel)
		}
	}
}

// foreign writes behind whatever the row has.
func (tr *asyncTrial) foreign(channel string) {
	heads, err := tr.memory.Heads(context.Background(), []history.HeadQuery{{Channel: channel}})
	if err == nil {
		h := &heads[0]
		run := history.Run{Channel: channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{{Offset: h.Offset + 1, TimeMS: 1, Data: []byte(`"another"`)}}}
		_, _ = tr.memory.Append(context.Background(), []history.Run{run}) // it may lose the race
	}
}

// look asks as an edge: what is recovered has no holes and goes up to the head.
func (tr *asyncTrial) look(edge *edgeClient, channel string) {
	last := tr.bus.last(channel)
	if last == nil {
		return
	}
	ask := position(channel, last.Epoch, uint64(tr.rng.IntN(int(last.Head)+1)))
	a := edge.ask(ask)
	if !a.Recovered {
		return
	}
	at := ask.Offset
	for _, e := range a.Events {
		if at++; e.Offset != at {
			tr.t.Errorf("%s: asked after %d, told %d where %d is due", channel, ask.Offset, e.Offset, at)
		}
	}
	if !a.More && at != a.Head {
		tr.t.Errorf("%s: recovered from %d to %d, the head is %d", channel, ask.Offset, at, a.Head)
	}
}

func (tr *asyncTrial) checkStored(i int) {
	last, times := "", make(map[string]int)
	for k, e := range tr.stored(asyncChannel(i)) {
		data := string(e.Data)
		if e.Offset != uint64(k+1) {
			tr.t.Errorf("%d: a hole before offset %d", i, e.Offset)
		}
		if data == `"another"` {
			continue
		}
		if times[data]++; data <= last {
			tr.t.Errorf("%d: %s is stored at %d, behind %s", i, data, e.Offset, last)
		}
		last = data
	}
	for _, data := range tr.acked[i] {
		if times[data] == 0 && !tr.flips && !tr.small && !tr.evict {
			tr.t.Errorf("%d: %s was acked and is not stored", i, data)
		}
	}
}

func (tr *asyncTrial) checkBus(channel string) {
	heads := make(map[uint64]uint64)
	for _, envelope := range tr.bus.all() {
		if envelope.Channel != channel {
			continue
		}
		for _, e := range envelope.Events {
			if head, known := heads[envelope.Epoch]; known && e.Offset != head+1 {
				tr.t.Errorf("%s, epoch %d: %d on the bus where %d is due", channel, envelope.Epoch, e.Offset, head+1)
			}
			heads[envelope.Epoch] = e.Offset
		}
	}
}
