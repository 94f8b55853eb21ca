package historytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

// aDay is how long channels of these tests are idle before they may go.
const aDay = 24 * hour

// clock is the time of the stores of a test, which moves it.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.ms.Store(time.Now().UnixMilli())
	return c
}

func (c *clock) now() time.Time           { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(by time.Duration) { c.ms.Add(by.Milliseconds()) }

// idler is a store whose clock a test moves.
type idler struct {
	*clock
	testing.TB
	history.Store
}

// store appends one event of now to each channel.
func (s *idler) store(channels ...string) {
	s.Helper()
	for _, channel := range channels {
		mustStore(s, s.Store, s.run(mustHead(s, s.Store, channel)))
	}
}

func (s *idler) run(h history.Head) history.Run {
	run := runAfter(h, 1)
	run.Events[0].TimeMS = s.now().UnixMilli()
	return run
}

// trim has events of "chat" live for an hour, and keys for two.
func (s *idler) trim() {
	s.Helper()
	mustTrim(s, s.Store, 2*hour, 1_000, history.Retention{Namespace: "chat", TTL: hour})
}

func (s *idler) forget(limit, want int) {
	s.Helper()
	n, err := s.Forget(callContext(s), aDay, limit)
	if err != nil || n != want {
		s.Fatalf("forget: %d went, %v; want %d", n, err, want)
	}
}

func (s *idler) exists(channel string) bool {
	s.Helper()
	return mustRead(s, s.Store, history.Range{Channel: channel, Limit: 1})[0].Exists
}

func (s *idler) wantRows(want map[string]bool) {
	s.Helper()
	for channel, exists := range want {
		if s.exists(channel) != exists {
			s.Errorf("%s: has a row: %v, want %v", channel, !exists, exists)
		}
	}
}

// idleRowsGo: only those of channels in which nothing is left, and a day later.
func idleRowsGo(s *idler) {
	unused := mustHead(s, s.Store, "chat:unused")
	s.store("chat:old", "news", "chat:kept")
	keyed := keyedRun(mustHead(s, s.Store, "chat:keyed"), "b", "k")
	keyed.Events[0].TimeMS = s.now().Add(3 * aDay).UnixMilli() // by a clock that is ahead: its key lives longer
	mustStore(s, s.Store, keyed)
	old := mustHead(s, s.Store, "chat:old")
	s.forget(100, 0)
	s.advance(2 * hour)
	s.trim() // chat:old and chat:kept are empty from here on
	s.advance(aDay - 3*hour)
	s.forget(100, 0)
	if err := s.Keep(callContext(s), []string{"chat:kept", "chat:none"}); err != nil {
		s.Fatal(err)
	}
	s.advance(2 * hour)
	s.forget(100, 1)
	s.wantRows(map[string]bool{"chat:unused": false, "chat:old": true, "news": true, "chat:kept": true, "chat:keyed": true, "chat:none": false})
	s.advance(hour)
	s.forget(100, 1)
	s.wantRows(map[string]bool{"chat:old": false, "news": true, "chat:kept": true, "chat:keyed": true})
	s.advance(aDay)
	s.forget(100, 1)
	s.wantRows(map[string]bool{"news": true, "chat:kept": false, "chat:keyed": true})

	// Who still believes in such a row loses, and cannot renew it.
	stale := []history.Head{old, unused}
	for i, outcome := range mustAppend(s, s.Store, s.run(old), s.run(unused)) {
		if outcome != history.Lost {
			s.Errorf("a run behind the forgotten %+v: %v", stale[i], outcome)
		}
		if h := mustRenew(s, s.Store, renewalOf(stale[i]))[0]; h.Epoch != 0 {
			s.Errorf("renewal of the forgotten %+v: %+v", stale[i], h)
		}
	}
	for _, before := range stale {
		h := mustHead(s, s.Store, before.Channel)
		if h.Epoch <= before.Epoch || h.Offset != 0 {
			s.Errorf("%+v came back as %+v", before, h)
		}
		s.store(before.Channel)
		wantLeft(s, s.Store, before.Channel, 1, 1)
		if outcomes := mustAppend(s, s.Store, s.run(before)); outcomes[0] != history.Lost {
			s.Errorf("a run of the old epoch: %v", outcomes[0])
		}
	}
	wantLeft(s, s.Store, "news", 1, 1)
}

// keysKeepRows: a key is known for its window, so its channel stays.
func keysKeepRows(s *idler) {
	run := keyedRun(mustHead(s, s.Store, "chat:a"), "b", "k")
	run.Events[0].TimeMS = s.now().UnixMilli()
	mustStore(s, s.Store, run)
	key := history.Key{Scope: "b", Key: "k"}
	trim := func(window time.Duration) {
		mustTrim(s, s.Store, window, 100, history.Retention{Namespace: "chat", TTL: hour})
	}
	s.advance(2 * hour)
	trim(3 * aDay)
	s.advance(2 * aDay)
	trim(3 * aDay)
	s.forget(100, 0)
	if h := mustHead(s, s.Store, "chat:a", key); h.Epoch != run.Epoch || h.Repeats[key] != 1 {
		s.Fatalf("head %+v, want the key", h)
	}
	s.advance(aDay)
	trim(3 * aDay)
	s.forget(100, 1)
	h := mustHead(s, s.Store, "chat:a", key)
	if h.Epoch <= run.Epoch || h.Repeats != nil {
		s.Fatalf("came back as %+v, was epoch %d", h, run.Epoch)
	}
	mustStore(s, s.Store, keyedRun(h, "b", "k"))
}

// epochsFollowForgotten: also those that owners have given.
func epochsFollowForgotten(s *idler) {
	a, b := mustHead(s, s.Store, "chat:a"), mustHead(s, s.Store, "chat:b")
	named := renewalOf(a)
	named.New = 7<<40 | 1
	last := renewalOf(b)
	last.New = history.MaxForgotten + 1
	s.advance(aDay - hour)
	mustRenew(s, s.Store, named, last) // is a use
	s.advance(2 * hour)
	s.forget(100, 0)
	s.advance(aDay)
	s.forget(100, 1)
	s.wantRows(map[string]bool{"chat:a": false, "chat:b": true}) // no sequence could follow
	if h := mustHead(s, s.Store, "chat:new"); h.Epoch <= named.New {
		s.Errorf("a new channel has epoch %d, not above %d", h.Epoch, named.New)
	}
	if h := mustHead(s, s.Store, "chat:a"); h.Epoch <= named.New {
		s.Errorf("the channel has epoch %d, not above %d", h.Epoch, named.New)
	}
}

// useEndsIdleness: an append begins anew what was nearly over.
func useEndsIdleness(s *idler) {
	s.store("chat:a")
	s.advance(2 * hour)
	s.trim()
	s.advance(aDay - time.Minute)
	s.store("chat:a")
	s.advance(2 * hour)
	s.forget(100, 0) // it has an event, though an old one
	s.trim()
	s.advance(aDay - time.Minute)
	s.forget(100, 0)
	wantLeft(s, s.Store, "chat:a", 3, 2)
	s.advance(time.Minute)
	s.forget(100, 1)
}

// rulesOutliveRows: what changes about rules neither hurries nor stops it.
func rulesOutliveRows(s *idler) {
	s.store("chat:a", "chat:b", "other:a")
	s.advance(2 * hour)
	s.trim()
	s.advance(aDay - time.Minute)
	mustTrim(s, s.Store, hour, 100, history.Retention{Namespace: "chat", TTL: 5 * aDay, Size: 3})
	s.store("chat:b")
	s.forget(100, 0)
	s.advance(time.Minute)
	mustTrim(s, s.Store, hour, 100)
	s.forget(100, 1)
	s.wantRows(map[string]bool{"chat:a": false, "chat:b": true, "other:a": true})
	s.advance(3 * aDay)
	mustTrim(s, s.Store, hour, 100, history.Retention{Namespace: "chat", TTL: 5 * aDay}, history.Retention{Namespace: "other", TTL: aDay})
	s.forget(100, 0)
	s.advance(aDay)
	s.forget(100, 1)
	s.wantRows(map[string]bool{"chat:b": true, "other:a": false})
}

func forgetInSteps(s *idler) {
	const channels, limit = 2_345, 500
	var queries []history.HeadQuery
	for i := range channels {
		queries = append(queries, history.HeadQuery{Channel: fmt.Sprintf("chat:%d", i)})
	}
	if _, err := s.Heads(callContext(s), queries); err != nil {
		s.Fatal(err)
	}
	s.advance(aDay)
	for left := channels; left > 0; left -= limit {
		s.forget(limit, min(limit, left))
	}
	s.forget(limit, 0)
	for _, bad := range []struct{ idle, limit int }{{0, 1}, {int(hour), 0}} {
		if _, err := s.Forget(callContext(s), time.Duration(bad.idle), bad.limit); err == nil {
			s.Errorf("%+v was taken", bad)
		}
	}
}

// clockAhead: what a clock notes that is a year ahead is not kept for a year.
func clockAhead(s *idler) {
	s.advance(365 * aDay)
	mustHead(s, s.Store, "chat:a")
	s.advance(-365 * aDay)
	s.forget(100, 0)
	s.advance(aDay - time.Minute)
	s.forget(100, 0)
	s.advance(time.Minute)
	s.forget(100, 1)
}

// publisher of a race with retention: it believes its heads until it loses.
type racer struct {
	store  history.Store
	random *rand.Rand
	heads  map[string]history.Head
	acks   *raced
}

// raced is what was acked, by channel and epoch.
type raced struct {
	mu     sync.Mutex
	events map[string]map[uint64]map[uint64]string // guarded by mu
	twice  error                                   // guarded by mu
}

func (r *raced) ack(run *history.Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	epochs := r.events[run.Channel]
	if epochs == nil {
		epochs = make(map[uint64]map[uint64]string)
		r.events[run.Channel] = epochs
	}
	if epochs[run.Epoch] == nil {
		epochs[run.Epoch] = make(map[uint64]string)
	}
	for _, e := range run.Events {
		if epochs[run.Epoch][e.Offset] != "" {
			r.twice = fmt.Errorf("%s: offset %d of epoch %d was given twice", run.Channel, e.Offset, run.Epoch)
		}
		epochs[run.Epoch][e.Offset] = string(e.Data)
	}
}

func (p *racer) publish(ctx context.Context, t testing.TB, name string, rounds, channels int) error {
	for round := range rounds {
		seen := make(map[string]bool)
		var queries []history.HeadQuery
		var runs []history.Run
		for range 1 + p.random.IntN(4) {
			channel := fmt.Sprintf("%s:%d", []string{"chat", "kept"}[p.random.IntN(2)], p.random.IntN(channels))
			if seen[channel] {
				continue
			}
			seen[channel] = true
			if _, known := p.heads[channel]; !known {
				queries = append(queries, history.HeadQuery{Channel: channel})
			}
		}
		heads, err := p.store.Heads(ctx, queries)
		for try := 0; err != nil && try < 20; try++ { // rows of a millisecond may go while they are loaded
			heads, err = p.store.Heads(ctx, queries)
		}
		if err != nil {
			return err
		}
		for _, h := range heads {
			p.heads[h.Channel] = h
		}
		for channel := range seen {
			run := runAfter(p.heads[channel], 1+p.random.IntN(3))
			for i := range run.Events {
				run.Events[i].Data = fmt.Appendf(nil, "%s/%d/%d", name, round, i)
			}
			runs = append(runs, run)
		}
		outcomes, err := p.store.Append(ctx, runs)
		if err != nil {
			return err
		}
		for i := range runs {
			if outcomes[i] != history.Stored {
				delete(p.heads, runs[i].Channel)
				continue
			}
			p.heads[runs[i].Channel] = history.Head{Channel: runs[i].Channel, Epoch: runs[i].Epoch, Offset: runs[i].NewHead()}
			p.acks.ack(&runs[i])
		}
	}
	return nil
}

func forgetRaces(t *testing.T, s history.Store) { raceForgetting(t, []history.Store{s, s}) }

// raceForgetting publishes on channels that retention is taking away all the time,
// through two retentions: those of "chat" as soon as they are empty, which they are
// soon, and those of "kept" until their first event is stored. What was acked is
// stored but for what age took, offsets have no holes, and no epoch begins twice.
// (I1, I2)
func raceForgetting(t *testing.T, stores []history.Store) {
	random := seeded(t)
	const publishers, rounds, channels = 4, 150, 30
	acks := &raced{events: make(map[string]map[uint64]map[uint64]string)}
	ctx, cancel := context.WithCancel(callContext(t))
	defer cancel()
	var publishing, trimming errgroup.Group
	var forgotten, left atomic.Int64
	left.Store(publishers)
	for i := range publishers {
		p := &racer{stores[i%len(stores)], rand.New(rand.NewPCG(random.Uint64(), 0)), make(map[string]history.Head), acks}
		// Owns p; ends after its rounds; waited for below.
		publishing.Go(func() error {
			defer left.Add(-1)
			return p.publish(ctx, t, fmt.Sprint("publisher", i), rounds, channels)
		})
	}
	for _, s := range stores {
		// Owns nothing; ends with the publishers; waited for below.
		trimming.Go(func() error {
			for left.Load() > 0 {
				if _, err := s.Trim(ctx, []history.Retention{{Namespace: "chat", TTL: time.Millisecond}}, 0, 1_000); err != nil {
					return err
				}
				n, err := s.Forget(ctx, time.Millisecond, 1_000)
				if err != nil {
					return err
				}
				forgotten.Add(int64(n))
			}
			return nil
		})
	}
	err := publishing.Wait()
	if err := trimming.Wait(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkRaced(t, stores[0], acks)
	t.Logf("%d rows went meanwhile", forgotten.Load())
	if forgotten.Load() == 0 {
		t.Error("no row went meanwhile")
	}
}

func checkRaced(t *testing.T, s history.Store, acks *raced) {
	t.Helper()
	if acks.twice != nil {
		t.Error(acks.twice)
	}
	for channel, epochs := range acks.events {
		newest := uint64(0)
		for epoch, acked := range epochs {
			newest = max(newest, epoch)
			for offset := range uint64(len(acked)) {
				if acked[offset+1] == "" {
					t.Errorf("%s: epoch %d has %d events, but not %d", channel, epoch, len(acked), offset+1)
				}
			}
		}
		p, events := all(t, s, channel)
		if history.Namespace(channel) == "kept" && (len(epochs) != 1 || p.First != 1 || p.Epoch != newest) {
			t.Errorf("%s: %d epochs acked, stored are events from %d on in epoch %d, want all in %d", channel, len(epochs), p.First, p.Epoch, newest)
		}
		if p.Exists && (p.Epoch < newest || p.Epoch == newest && p.Head != uint64(len(epochs[newest]))) {
			t.Errorf("%s: head %d of epoch %d, acked are %d of epoch %d", channel, p.Head, p.Epoch, len(epochs[newest]), newest)
		}
		for _, e := range events {
			if acked := epochs[p.Epoch][e.Offset]; acked != string(e.Data) {
				t.Errorf("%s: stored %d %s, acked %q", channel, e.Offset, e.Data, acked)
			}
		}
	}
}
