package torture

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// breakVariable tells a router of a trial to be broken. The commands of Spillway do not
// know it.
const breakVariable = "TORTURE_BREAK"

// Namespaces of the trial with broken parts, each with a break of its own.
const (
	forgets = "forgets" // acks runs that it does not store
	unfence = "unfence" // a lost race counts as won
	keyless = "keyless" // keys are neither looked up nor kept
	mixed   = "mixed"   // events are stored as others than subscribers hear
	lagging = "lagging" // reads come from a replica that is up to a second behind
)

const (
	forgetEvery = 15
	lag         = time.Second
)

// broken is a store that breaks a promise in each of the namespaces above and keeps all
// in the others.
type broken struct {
	history.Store

	mu    sync.Mutex // guards all below
	runs  int        // of forgets
	mixes int        // of mixed
	heads map[string]replica
}

// replica is what one has of a channel.
type replica struct {
	head uint64
	at   time.Time
}

// breakage is what stands between a router of a trial and its store; nil: nothing.
func breakage() func(history.Store) history.Store {
	if os.Getenv(breakVariable) == "" {
		return nil
	}
	return func(s history.Store) history.Store { return &broken{Store: s, heads: make(map[string]replica)} }
}

func (b *broken) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	outcomes := make([]history.Outcome, len(runs))
	var real []history.Run
	var at []int
	for i, r := range runs {
		if b.forget(r.Channel) {
			outcomes[i] = history.Stored
			continue
		}
		if history.Namespace(r.Channel) == keyless {
			r.Events = slices.Clone(r.Events)
			for j := range r.Events {
				r.Events[j].Key = ""
			}
		}
		if history.Namespace(r.Channel) == mixed && b.every(&b.mixes) {
			r.Events = slices.Clone(r.Events)
			r.Events[0].Data = []byte(`{"v":"mixed up"}`)
		}
		real, at = append(real, r), append(at, i)
	}
	if len(real) == 0 {
		return outcomes, nil
	}
	got, err := b.Store.Append(ctx, real)
	if err != nil {
		return nil, err
	}
	for i, outcome := range got {
		if history.Namespace(real[i].Channel) == unfence {
			outcome = history.Stored
		}
		outcomes[at[i]] = outcome
	}
	return outcomes, nil
}

func (b *broken) forget(channel string) bool {
	if history.Namespace(channel) != forgets {
		return false
	}
	return b.every(&b.runs)
}

// every counts runs; true: it is time for a break.
func (b *broken) every(runs *int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	*runs++
	return *runs%forgetEvery == 0
}

func (b *broken) Heads(ctx context.Context, queries []history.HeadQuery) ([]history.Head, error) {
	queries = slices.Clone(queries)
	for i := range queries {
		if history.Namespace(queries[i].Channel) == keyless {
			queries[i].Keys = nil
		}
	}
	return b.Store.Heads(ctx, queries)
}

func (b *broken) Read(ctx context.Context, ranges []history.Range) ([]history.Page, error) {
	pages, err := b.Store.Read(ctx, ranges)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range pages {
		p := &pages[i]
		if history.Namespace(p.Channel) != lagging || !p.Exists {
			continue
		}
		old, ok := b.heads[p.Channel]
		if !ok || time.Since(old.at) > lag {
			b.heads[p.Channel] = replica{p.Head, time.Now()}
			continue
		}
		p.Head, p.First = old.head, min(p.First, old.head+1)
		p.Events = slices.DeleteFunc(p.Events, func(e history.Event) bool { return e.Offset > old.head })
	}
	return pages, err
}
