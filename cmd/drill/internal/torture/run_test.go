package torture

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
)

// run has the trial's people at work, calls trouble, mends what it left, lets
// subscribers catch up and returns what the ledger says.
func (tr *trial) run(trouble func(rng *rand.Rand)) []ledger.Breach {
	rng := rand.New(rand.NewPCG(tr.plan.seed, 1))
	tr.birth(rng)
	working, stop := context.WithCancel(context.Background())
	var workers, watchers sync.WaitGroup
	source := func(n int) *rand.Rand { return rand.New(rand.NewPCG(tr.plan.seed, uint64(100+n))) }
	for i := range tr.plan.watchers {
		sdk := &sdkWatcher{tr: tr, name: fmt.Sprint("sdk-", i), rng: source(i), stay: i == 0}
		raw := &rawWatcher{tr: tr, name: fmt.Sprint("raw-", i), rng: source(50 + i)}
		raw.mangle = tr.plan.mangles[raw.name]
		// They end once tr.over is closed; waited for below.
		watchers.Go(func() { tr.must("sdk", sdk.run(working)) })
		watchers.Go(func() { raw.run(working) })
	}
	for i := range tr.plan.publishers {
		p := &publisher{tr: tr, name: fmt.Sprint("p", i), rng: source(200 + i)}
		workers.Go(func() { p.run(working) }) // ends with working; waited for below
	}
	w := &publisher{tr: tr, name: "w", rng: source(240), web: true}
	workers.Go(func() { w.run(working) }) // as well
	st := &streamer{publisher: publisher{tr: tr, name: "s", rng: source(250)}}
	workers.Go(func() { st.run(working) }) // as well
	u := &user{tr: tr, name: "u", rng: source(260)}
	workers.Go(func() { tr.must("sdk", u.run(working)) }) // as well
	for i := range tr.plan.publishers {
		r := &reader{tr: tr, name: fmt.Sprint("r", i), rng: source(300 + i)}
		workers.Go(func() { r.run(working) }) // as well
	}

	trouble(rng)
	tr.note("no more faults")
	stop()
	workers.Wait()
	tr.mend()
	tr.last()
	tr.await()
	close(tr.over)
	watchers.Wait()
	tr.races()
	acked, unknown, refused := tr.rec.outcomes()
	tr.t.Logf("seed %d: %d publishes acked, %d of unknown outcome, %d refused, %d reads, %d subscriptions, %d channels; %.1f s",
		tr.plan.seed, acked, unknown, refused, len(tr.rec.all().Reads), len(tr.rec.all().Streams), len(tr.channels.all()), tr.rec.now().Seconds())
	return ledger.Check(tr.rec.all(), rules)
}

// mend has everything run and waits until it serves. The stranger stays away from now
// on: nobody would repair what the bus lost of its newest words.
func (tr *trial) mend() {
	ctx, cancel := context.WithTimeout(context.Background(), finalTime)
	defer cancel()
	for _, p := range tr.proxies {
		p.Mend()
	}
	if len(tr.routers) > tr.members {
		tr.must("kill", tr.routers[tr.members].Kill())
	}
	for _, r := range tr.routers[:tr.members] {
		tr.must("serve again", tr.c.AwaitReady(ctx, r.Node))
	}
	for _, e := range tr.c.Edges() {
		tr.must("serve again", tr.c.AwaitReady(ctx, e))
	}
	tr.note("everything is mended")
}

// last publishes one event on the channels whose newest events nobody has to look for:
// those of the stranger, and those whose owner's memory was all that there was.
func (tr *trial) last() {
	p := &publisher{tr: tr, name: "last", rng: rand.New(rand.NewPCG(tr.plan.seed, 400))}
	for _, channel := range tr.channels.all() {
		if ns := namespace(channel); strange(channel) || ns == loose {
			d := p.draft(channel)
			d.Key, d.bad = d.Value, false
			p.send(context.Background(), []*draft{d})
		}
	}
}

// await reads the end of every channel until it stays, since what a publisher has given
// up may be stored seconds later, and gives subscribers time to reach it.
func (tr *trial) await() {
	begun := tr.rec.now()
	ends, before := tr.ends(), map[string]ledger.Position(nil)
	for tr.rec.now()-begun < tr.plan.catchUp && (tr.behind(ends) > 0 || !maps.Equal(ends, before)) {
		tr.rest(time.Second)
		ends, before = tr.ends(), ends
	}
	tr.note("subscribers had %v to catch up, %d have not", (tr.rec.now() - begun).Round(time.Millisecond), tr.behind(ends))
	for _, s := range tr.rec.subscriptions() {
		s.settle()
	}
}

// ends reads all of every channel; what is read last counts.
func (tr *trial) ends() map[string]ledger.Position {
	ctx, cancel := context.WithTimeout(context.Background(), finalTime)
	defer cancel()
	ends := make(map[string]ledger.Position)
	for _, channel := range tr.channels.all() {
		page, err := tr.end(ctx, channel)
		if err != nil {
			tr.t.Errorf("%s: its end cannot be read: %v", channel, err)
			continue
		}
		tr.rec.final(page)
		ends[channel] = ledger.Position{Epoch: page.Epoch, Offset: page.Head}
	}
	return ends
}

func (tr *trial) behind(ends map[string]ledger.Position) (n int) {
	for _, s := range tr.rec.subscriptions() {
		if at, known := s.position(); !known || at != ends[s.notes.Channel] {
			n++
		}
	}
	return n
}

// end reads all of a channel, from the store itself where there is a way to it.
func (tr *trial) end(ctx context.Context, channel string) (ledger.Read, error) {
	for {
		page, err := tr.whole(ctx, tr.routers[0], channel)
		if err == nil && tr.store != nil && namespace(channel) != loose {
			page, err = tr.stored(ctx, channel)
		}
		if err == nil || ctx.Err() != nil {
			return page, err
		}
		tr.rest(100 * time.Millisecond)
	}
}

// report fails the test with every breach.
func (tr *trial) report(found []ledger.Breach) {
	for i := range found {
		tr.t.Errorf("seed %d: %v", tr.plan.seed, &found[i])
	}
}
