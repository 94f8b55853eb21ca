package historytest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

func twoBelievers(t *testing.T, s history.Store) { believers(t, []history.Store{s, s, s}) }

// ledger is what was acked: per channel, which event has which offset.
type ledger struct {
	mu    sync.Mutex
	acked map[string]map[uint64]string // guarded by mu
}

func (l *ledger) ack(run *history.Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.acked[run.Channel]
	if of == nil {
		of = make(map[uint64]string)
		l.acked[run.Channel] = of
	}
	for _, e := range run.Events {
		of[e.Offset] = string(e.Data)
	}
}

// believers lets several owners believe in the same channels, from the first
// event on. Each keeps its own heads and reloads only what it lost. In the end
// what was acked must be what is stored, without holes. (I1, I2)
func believers(t *testing.T, stores []history.Store) {
	random := seeded(t)
	const channels, rounds = 40, 60
	l := &ledger{acked: make(map[string]map[uint64]string)}
	var group errgroup.Group
	for i, s := range stores {
		b := &believer{
			name: fmt.Sprint("owner", i), store: s, ledger: l,
			random: rand.New(rand.NewPCG(random.Uint64(), 0)), heads: make(map[string]history.Head),
		}
		// Owns the heads that b believes in; ends after its rounds; waited for below.
		group.Go(func() error { return b.play(t, channels, rounds) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	total := 0
	for channel, acked := range l.acked {
		p, events := all(t, stores[0], channel)
		if p.First != 1 || len(events) != len(acked) {
			t.Fatalf("%s: %d acked, %d stored from %d on", channel, len(acked), len(events), p.First)
		}
		for _, e := range events {
			if acked[e.Offset] != string(e.Data) {
				t.Fatalf("%s offset %d: stored %s, acked %s", channel, e.Offset, e.Data, acked[e.Offset])
			}
		}
		total += len(events)
	}
	t.Logf("%d acked = %d stored", total, total)
}

// believer is an owner among others of the same channels.
type believer struct {
	name   string
	store  history.Store
	ledger *ledger
	random *rand.Rand
	heads  map[string]history.Head
	lost   int
}

func (b *believer) play(t testing.TB, channels, rounds int) error {
	for round := range rounds {
		var names []string
		for _, n := range b.random.Perm(channels)[:1+b.random.IntN(channels)] {
			names = append(names, fmt.Sprintf("chat:%d", n))
		}
		if err := b.load(t, names); err != nil {
			return err
		}
		var runs []history.Run
		for _, name := range names {
			run := runAfter(b.heads[name], 1+b.random.IntN(3))
			for i := range run.Events {
				run.Events[i].Data = fmt.Appendf(nil, "%s/%d/%d", b.name, round, i)
			}
			if b.random.IntN(4) == 0 {
				run.Events[0].Scope, run.Events[0].Key = b.name, fmt.Sprint(round)
			}
			runs = append(runs, run)
		}
		outcomes, err := b.store.Append(callContext(t), runs)
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", b.name, round, err)
		}
		for i := range runs {
			b.learn(&runs[i], outcomes[i])
		}
	}
	t.Logf("%s lost %d runs", b.name, b.lost)
	return nil
}

func (b *believer) load(t testing.TB, names []string) error {
	var queries []history.HeadQuery
	for _, name := range names {
		if _, known := b.heads[name]; !known {
			queries = append(queries, history.HeadQuery{Channel: name})
		}
	}
	heads, err := b.store.Heads(callContext(t), queries)
	for _, h := range heads {
		b.heads[h.Channel] = h
	}
	return err
}

func (b *believer) learn(run *history.Run, outcome history.Outcome) {
	if outcome != history.Stored {
		b.lost++
		delete(b.heads, run.Channel)
		return
	}
	b.heads[run.Channel] = history.Head{Channel: run.Channel, Epoch: run.Epoch, Offset: run.NewHead()}
	b.ledger.ack(run)
}

func twoCreators(t *testing.T, s history.Store) { creators(t, []history.Store{s, s, s, s}) }

// creators ask for the same new channels at once, each in an order of its own.
func creators(t *testing.T, stores []history.Store) {
	random := seeded(t)
	const channels = 300
	epochs := make([]map[string]uint64, len(stores))
	var group errgroup.Group
	for i, s := range stores {
		epochs[i] = make(map[string]uint64)
		order := random.Perm(channels)
		// Owns epochs[i]; ends when the channels are loaded; waited for below.
		group.Go(func() error {
			for len(order) > 0 {
				var queries []history.HeadQuery
				for _, n := range order[:min(30, len(order))] {
					queries = append(queries, history.HeadQuery{Channel: fmt.Sprintf("chat:%d", n)})
				}
				order = order[len(queries):]
				heads, err := s.Heads(callContext(t), queries)
				if err != nil {
					return err
				}
				for _, h := range heads {
					epochs[i][h.Channel] = h.Epoch
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint64]string)
	for channel, epoch := range epochs[0] {
		for i := range epochs {
			if epochs[i][channel] != epoch {
				t.Fatalf("%s: creator %d read epoch %d, creator 0 %d", channel, i, epochs[i][channel], epoch)
			}
		}
		if other, twice := seen[epoch]; twice || epoch == 0 {
			t.Fatalf("%s and %s have epoch %d", channel, other, epoch)
		}
		seen[epoch] = channel
	}
}
