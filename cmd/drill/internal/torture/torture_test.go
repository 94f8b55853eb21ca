package torture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
)

// lanes is how many faults there are at a time.
const lanes = 3

// deal is trouble: each kind of fault that the trial can have once, in random order, then
// random ones until the time is over.
func (tr *trial) deal(rng *rand.Rand) {
	var deck []*fault
	for i := range faults {
		if f := &faults[i]; (f.needs == nil || f.needs(tr)) && (!f.long || *long) {
			deck = append(deck, f)
		}
	}
	rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	kinds := slices.Clone(deck)
	end := tr.rec.now() + time.Duration(*minutes*float64(time.Minute))
	var mu sync.Mutex // guards deck and rng
	next := func() (*fault, *rand.Rand) {
		mu.Lock()
		defer mu.Unlock()
		if len(deck) == 0 && tr.rec.now() < end {
			deck = append(deck, kinds[rng.IntN(len(kinds))])
		}
		if len(deck) == 0 {
			return nil, nil
		}
		f := deck[0]
		deck = deck[1:]
		return f, rand.New(rand.NewPCG(rng.Uint64(), 0))
	}
	var running sync.WaitGroup
	for range lanes {
		running.Go(func() { // ends with the deck; waited for below
			for f, dice := next(); f != nil; f, dice = next() {
				f.do(tr, dice)
			}
		})
	}
	running.Wait()
}

func TestFaultsBreakNoPromiseOverPostgres(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, plan{seed: *seed, store: cluster.Postgres, edges: 2, publishers: 4, watchers: 2, catchUp: finalTime})
	tr.refusePoison()
	tr.report(tr.run(tr.deal))
}

func TestFaultsBreakNoPromiseOverSQLite(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, plan{seed: *seed + 1, store: cluster.SQLite, edges: 2, publishers: 3, watchers: 2, catchUp: finalTime})
	tr.report(tr.run(tr.deal))
}

// What a part does wrong is found, whichever part and whatever it is; what the same
// parts do right passes.
func TestBrokenPartsAreFound(t *testing.T) {
	t.Parallel()
	edge := func(breaks func(line []byte, held *[]byte) [][]byte) func([]byte) [][]byte {
		n, held := 0, []byte(nil)
		return func(line []byte) [][]byte {
			if !bytes.HasPrefix(line, []byte(`{"type":"event","channel":"`+kept)) {
				return [][]byte{line}
			}
			if n++; n%20 != 0 && held == nil {
				return [][]byte{line}
			}
			return breaks(line, &held)
		}
	}
	tr := newTrial(t, plan{
		seed: *seed + 2, store: cluster.Postgres, edges: 1, publishers: 4, watchers: 5, breaks: "yes", catchUp: 3 * time.Second,
		namespaces: []string{kept, forgets, unfence, keyless, lagging, mixed},
		mangles: map[string]func([]byte) [][]byte{
			"raw-1": edge(func([]byte, *[]byte) [][]byte { return nil }),
			"raw-2": edge(func(line []byte, _ *[]byte) [][]byte { return [][]byte{line, line} }),
			"raw-3": edge(func(line []byte, held *[]byte) [][]byte {
				if *held == nil {
					*held = line
					return nil
				}
				both := [][]byte{line, *held}
				*held = nil
				return both
			}),
		},
	})
	var deaf atomic.Bool
	tr.plan.mangles["raw-4"] = func(line []byte) [][]byte { // the bus loses, and nobody repairs it
		if bytes.HasPrefix(line, []byte(`{"type":"event","channel":"`+kept)) && deaf.Load() {
			return nil
		}
		return [][]byte{line}
	}
	found := tr.run(func(*rand.Rand) { // enough work that every break has had its chance
		for acked := 0; acked < 800 || len(tr.rec.all().Reads) < 150; acked, _, _ = tr.rec.outcomes() {
			if tr.rest(100 * time.Millisecond); tr.rec.now() > finalTime {
				t.Errorf("only %d publishes were acked in %v", acked, finalTime)
				return
			}
			deaf.Store(acked > 400)
		}
	})
	for ns, rules := range map[string][]string{
		forgets: {"ack", "agreement"}, unfence: {"ack", "agreement"}, keyless: {"key", "twice"}, lagging: {"linear"}, mixed: {"ack", "agreement"},
	} {
		if !slices.ContainsFunc(found, func(b ledger.Breach) bool { return namespace(b.Channel) == ns && slices.Contains(rules, b.Rule) }) {
			t.Errorf("nothing of %v was found in %s", rules, ns)
		}
	}
	for name, what := range map[string]string{"raw-1": "skips events", "raw-2": "doubles events", "raw-3": "swaps events"} {
		if !slices.ContainsFunc(found, func(b ledger.Breach) bool { return b.Rule == "order" && strings.HasPrefix(b.Text, name) }) {
			t.Errorf("it was not found that the edge of %s %s", name, what)
		}
	}
	if !slices.ContainsFunc(found, func(b ledger.Breach) bool { return b.Rule == "behind" && strings.HasPrefix(b.Text, "raw-4") }) {
		t.Error("it was not found that the newest events never reach raw-4")
	}
	for i, b := range found {
		if ns := namespace(b.Channel); ns == kept && !strings.HasPrefix(b.Text, "raw-") {
			t.Errorf("found where nothing was broken: %v", &found[i])
		}
	}
	if t.Failed() {
		t.Log(fmt.Sprint(len(found), " breaches"))
	}
}
