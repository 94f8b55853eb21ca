package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/presence/peers"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// faults decides by chance what happens to a call of the store.
type faults struct {
	history.Store
	rate float64 // of each fault

	mu      sync.Mutex
	rng     *rand.Rand
	zombies [][]history.Run // appends that were answered with an error and may land later
}

func (f *faults) chance() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.Float64() < f.rate
}

func (f *faults) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	for _, r := range runs {
		for _, e := range r.Events {
			if strings.Contains(string(e.Data), "poison") {
				return nil, &history.RefusedError{Err: errAway}
			}
		}
	}
	f.land(ctx)
	switch {
	case f.chance(): // failed before anything happened
		return nil, errAway
	case f.chance(): // committed, but the answer is lost
		_, _ = f.Store.Append(ctx, runs)
		return nil, errAway
	case f.chance(): // the answer is lost, the commit comes later
		f.mu.Lock()
		f.zombies = append(f.zombies, append([]history.Run(nil), runs...))
		f.mu.Unlock()
		return nil, errAway
	}
	return f.Store.Append(ctx, runs)
}

// land lets some of the late commits happen.
func (f *faults) land(ctx context.Context) {
	f.mu.Lock()
	late := f.zombies
	f.zombies = nil
	f.mu.Unlock()
	for _, runs := range late {
		if f.chance() {
			_, _ = f.Store.Append(ctx, runs)
			continue
		}
		f.mu.Lock()
		f.zombies = append(f.zombies, runs)
		f.mu.Unlock()
	}
}

func (f *faults) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	if f.chance() {
		return nil, errAway
	}
	return f.Store.Heads(ctx, q)
}

func (f *faults) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	if f.chance() {
		return nil, errAway
	}
	return f.Store.Read(ctx, r)
}

// Two routers that both believe they own three channels, over a store that
// fails before, after and long after its commits, with keys repeated at both and
// events that the store refuses. In the end: offsets without holes; every ack names
// a stored event of its own content; nothing with a key, and nothing that was
// published once, is stored twice; what was refused or "not stored" is not there.
func TestSequencerHoldsItsPromisesOverAFaultyStore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		rate := rapid.SampledFrom([]float64{0, 0.05, 0.2}).Draw(rt, "rate")
		store := memory.New(memory.Default())
		outcomes := publishOverFaults(t, store, rate, seed)
		if err := checkPromises(store, outcomes); err != nil {
			rt.Fatal(err)
		}
	})
}

type attempt struct {
	channel, data, key string
	res                machine.Result
}

func publishOverFaults(t *testing.T, store history.Store, rate float64, seed uint64) []attempt {
	var routers []*Router
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for i := range 2 {
		cfg := testConfig(fmt.Sprintf("r%d", i))
		cfg.RetryFor, cfg.RetryWait, cfg.BatchEvents, cfg.Committers = 300*time.Millisecond, time.Millisecond, 8, 2
		f := &faults{Store: store, rate: rate, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		r, err := New(cfg, Deps{Store: f, Bus: &recorder{}, Members: newMembers(snapshotOf(1, routerMember(cfg.ID, ""))), Peers: peers.New(peers.Config{})})
		if err != nil {
			t.Fatal(err)
		}
		routers = append(routers, r)
		parts.Go(func() { _ = r.table.Run(ctx) })
		parts.Go(func() { _ = r.writer.Run(ctx) })
	}
	outcomes := make([][]attempt, 4)
	var publishers sync.WaitGroup
	for p := range outcomes {
		publishers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(100+p)))
			for i := range 30 {
				a := attempt{channel: fmt.Sprintf("chat:%d", rng.IntN(3)), data: fmt.Sprintf(`"%d-%d"`, p, i)}
				switch rng.IntN(10) {
				case 0:
					a.data = fmt.Sprintf(`"poison %d-%d"`, p, i)
				case 1, 2, 3: // keys that all publishers share
					a.key = fmt.Sprint(rng.IntN(5))
					a.data = fmt.Sprintf(`"%s %s"`, a.channel, a.key)
				}
				a.res = routers[rng.IntN(2)].publishForTest(a)
				outcomes[p] = append(outcomes[p], a)
			}
		})
	}
	publishers.Wait()
	cancel()
	parts.Wait()
	for _, r := range routers {
		r.api.Stop(t.Context())
	}
	var all []attempt
	for _, o := range outcomes {
		all = append(all, o...)
	}
	return all
}

func (r *Router) publishForTest(a attempt) machine.Result {
	c := machine.NewCall(1)
	p := &machine.Publication{Channel: a.channel, Namespace: r.namespaces.Of(a.channel), Call: c}
	p.Event = history.Event{Data: []byte(a.data), Key: a.key, Scope: "b"}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	r.table.Publish(p)
	return c.Wait(ctx, []*machine.Publication{p})[0]
}

func checkPromises(store history.Store, outcomes []attempt) error {
	at := make(map[string]map[uint64]string)
	times := make(map[string]int)
	for c := range 3 {
		channel := fmt.Sprintf("chat:%d", c)
		pages, err := store.Read(context.Background(), []history.Range{{Channel: channel, Limit: 1 << 20}})
		if err != nil {
			return err
		}
		at[channel] = make(map[uint64]string)
		for i, e := range pages[0].Events {
			if e.Offset != uint64(i+1) {
				return fmt.Errorf("%s: a hole before offset %d", channel, e.Offset)
			}
			at[channel][e.Offset] = string(e.Data)
			times[channel+string(e.Data)]++
		}
	}
	for what, n := range times {
		if n > 1 {
			return fmt.Errorf("%s is stored %d times", what, n)
		}
	}
	for _, a := range outcomes {
		switch {
		case a.res.Code == codes.OK && at[a.channel][a.res.Offset] != a.data:
			return fmt.Errorf("%s was acked at %s/%d, where the store has %q", a.data, a.channel, a.res.Offset, at[a.channel][a.res.Offset])
		case strings.Contains(a.data, "poison") && a.res.Code != codes.InvalidArgument && a.res.Code != codes.Unavailable:
			return fmt.Errorf("%s: %v", a.data, a.res)
		case a.key == "" && strings.HasPrefix(a.res.Message, "not stored") && times[a.channel+a.data] != 0:
			return fmt.Errorf("%s was answered %q and is stored", a.data, a.res.Message)
		}
	}
	return nil
}
