package router

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/history/sqlite"
	"github.com/spillway-io/spillway/router/namespace"
)

// aged is a router and its store whose clock the test moves.
type aged struct {
	*node
	ms   atomic.Int64
	told *toldStore
}

// toldStore remembers of which uses it was told.
type toldStore struct {
	history.Store
	mu   sync.Mutex
	told map[string]int // guarded by mu
}

func (s *toldStore) Keep(ctx context.Context, channels []string) error {
	err := s.Store.Keep(ctx, channels)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, channel := range channels {
		s.told[channel]++
	}
	return err
}

func (s *toldStore) times(channel string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[channel]
}

func startAged(t *testing.T) *aged {
	a := new(aged)
	a.ms.Store(time.Now().UnixMilli())
	now := func() time.Time { return time.UnixMilli(a.ms.Load()) }
	a.told = &toldStore{Store: memory.New(memory.Config{Now: now}), told: make(map[string]int)}
	a.node = start(t, a.told, func(c *Config) { c.Now = now })
	return a
}

// pass lets time pass, and then a round of retention.
func (a *aged) pass(hours int) {
	a.t.Helper()
	a.ms.Add((time.Duration(hours) * time.Hour).Milliseconds())
	ctx := testContext(a.t)
	if err := a.retention.Round(ctx); err != nil {
		a.t.Fatal(err)
	}
}

func (a *aged) exists(channel string) bool {
	a.t.Helper()
	pages, err := a.node.store.Store.Read(testContext(a.t), []history.Range{{Channel: channel, Limit: 1}})
	if err != nil {
		a.t.Fatal(err)
	}
	return pages[0].Exists
}

// The row of a channel goes under a router that believes to know its head: the
// router loses, and the channel goes on in a new epoch from the first offset on.
// Positions of the old epoch are told apart, and nobody gets a wrong answer.
func TestForgottenChannelGoesOnInANewEpoch(t *testing.T) {
	const channel = "chat:a"
	a := startAged(t)
	for i := range 3 {
		a.publish1(channel, fmt.Sprint(i), "")
	}
	old := a.bus.last(channel).Epoch
	a.wantStored(channel, "0 1 2")
	a.pass(25)
	if !a.exists(channel) {
		t.Fatal("the row went with its events")
	}
	a.pass(37)
	if a.exists(channel) {
		t.Fatal("the row is still there")
	}
	e := a.sync()
	if answer := e.ask(position(channel, old, 3)); !answer.Recovered || answer.Head != 3 {
		t.Errorf("at the head, nothing missed: %v", answer)
	}
	a.publish1(channel, `3`, "")
	a.wantStored(channel, "3")
	placed := a.publish1(channel, `4`, "")
	a.wantStored(channel, "3 4")
	if placed.Offset != 2 {
		t.Errorf("placed %v, want the second of its epoch", placed)
	}
	env := a.bus.last(channel)
	if env.Epoch <= old {
		t.Fatalf("on the bus: %v, the old epoch is %d", env, old)
	}
	for _, offset := range []uint64{0, 1, 2, 3, 4} {
		if answer := e.ask(position(channel, old, offset)); answer.Recovered || answer.Epoch != env.Epoch || answer.Head != 2 {
			t.Errorf("position %d of the old epoch: %v", offset, answer)
		}
	}
	if answer := e.ask(position(channel, env.Epoch, 0)); !answer.Recovered || offsetsOf(answer.Events) != "[1 2]" {
		t.Errorf("a position of the new epoch: %v", answer)
	}
}

// Edges ask for what they carry: such a channel keeps its row, and its epoch.
func TestChannelsThatEdgesCarryAreNotForgotten(t *testing.T) {
	a := startAged(t)
	e := a.sync()
	for _, channel := range []string{"chat:carried", "chat:left"} {
		a.publish1(channel, `1`, "")
	}
	epoch := e.ask(&gatewayv1.Ask{Channel: "chat:empty"}).Epoch // never published on
	e.ask(&gatewayv1.Ask{Channel: "chat:emptyleft"})
	old := a.bus.last("chat:carried").Epoch
	carried := []string{"chat:carried", "chat:empty"}
	for range 3 {
		a.pass(25) // events go in the first round
		before := make(map[string]int)
		for _, channel := range carried {
			before[channel] = a.told.times(channel)
			e.ask(&gatewayv1.Ask{Channel: channel})
		}
		for _, channel := range carried {
			eventually(t, "the store is told of "+channel, func() bool { return a.told.times(channel) > before[channel] })
		}
	}
	for channel, want := range map[string]bool{"chat:carried": true, "chat:left": false, "chat:empty": true, "chat:emptyleft": false} {
		if a.exists(channel) != want {
			t.Errorf("%s has a row: %v", channel, !want)
		}
	}
	if placed := a.publish1("chat:carried", `2`, ""); placed.Offset != 2 || a.bus.last("chat:carried").Epoch != old {
		t.Errorf("placed %v in %v, the epoch was %d", placed, a.bus.last("chat:carried"), old)
	}
	if placed := a.publish1("chat:empty", `1`, ""); placed.Offset != 1 || a.bus.last("chat:empty").Epoch != epoch {
		t.Errorf("placed %v in %v, the epoch was %d", placed, a.bus.last("chat:empty"), epoch)
	}
}

// Two routers that both believe to own everything publish on channels that both
// their retentions empty and forget all the time: each ack has its own place, each
// epoch is without holes, and the bus had exactly what was acked. (I1, I2)
func TestPublishesOnForgottenChannelsLoseNothing(t *testing.T) {
	for name, store := range map[string]history.Store{"memory": memory.New(memory.Default()), "sqlite": quickFile(t)} {
		t.Run(name, func(t *testing.T) {
			var nodes []*node
			for i := range 2 {
				nodes = append(nodes, start(t, store, func(c *Config) {
					c.ID = fmt.Sprint("r", i)
					c.TrimEvery, c.ForgetAfter = time.Millisecond, time.Millisecond
					c.KeyWindow = time.Millisecond
					ns := namespace.Default()
					ns.HistoryTTL = time.Millisecond
					c.Namespaces["short"] = ns
				}))
			}
			const publishers, channels, least = 6, 5, 15
			deadline := time.Now().Add(10 * time.Second)
			var mu sync.Mutex
			acked := make(map[string]string) // place -> data; guarded by mu
			epochs := make(map[string]bool)  // guarded by mu
			var group sync.WaitGroup
			for p := range publishers {
				// Publishes in turn through both routers; ends when there were enough epochs;
				// waited for below.
				group.Go(func() {
					for round := 0; time.Now().Before(deadline); round++ {
						channel, data := fmt.Sprint("short:", round%channels), fmt.Sprintf(`"%d-%d"`, p, round)
						placed, err := nodes[(p+round)%2].publishErr(channel, data, "")
						if err != nil {
							t.Errorf("publish: %v", err)
							return
						}
						place := fmt.Sprint(channel, " ", placed.Epoch, " ", placed.Offset)
						mu.Lock()
						if other, twice := acked[place]; twice {
							t.Errorf("%s was given to %s and %s", place, other, data)
						}
						acked[place] = data
						epochs[placed.Epoch] = true
						enough := len(epochs) >= least
						mu.Unlock()
						if enough {
							return
						}
					}
				})
			}
			group.Wait()
			onBus := make(map[string]string)
			newest := make(map[string]uint64)
			for _, n := range nodes {
				for _, env := range n.bus.all() {
					for _, e := range env.Events {
						onBus[fmt.Sprint(env.Channel, " ", wire.FormatEpoch(env.Epoch), " ", e.Offset)] = string(e.Data)
						key := fmt.Sprint(env.Channel, " ", env.Epoch)
						newest[key] = max(newest[key], e.Offset)
					}
				}
			}
			if len(onBus) != len(acked) {
				t.Errorf("%d events on the bus, %d acked", len(onBus), len(acked))
			}
			for place, data := range acked {
				if onBus[place] != data {
					t.Errorf("%s: acked %s, on the bus %q", place, data, onBus[place])
				}
			}
			events := 0
			for _, head := range newest {
				events += int(head)
			}
			if events != len(onBus) {
				t.Errorf("%d events in epochs that end at %d in all: there are holes", len(onBus), events)
			}
			t.Logf("%d events in %d epochs of %d channels", events, len(newest), channels)
			if len(newest) <= channels {
				t.Error("no channel was forgotten")
			}
		})
	}
}

func quickFile(t *testing.T) history.Store {
	cfg := sqlite.Default()
	cfg.Path, cfg.Synchronous = filepath.Join(t.TempDir(), "history.db"), sqlite.Normal
	s, err := sqlite.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
