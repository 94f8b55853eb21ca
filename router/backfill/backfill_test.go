package backfill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/renewal"
)

// hooked is a store that a test looks into.
type hooked struct {
	*memory.Store
	read  func([]history.Range) error // before each Read
	heads func()                      // before each Heads
}

func (s *hooked) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	if s.read != nil {
		if err := s.read(r); err != nil {
			return nil, err
		}
	}
	return s.Store.Read(ctx, r)
}

func (s *hooked) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	if s.heads != nil {
		s.heads()
	}
	return s.Store.Heads(ctx, q)
}

// reader is a Backfill that runs, and what it has answered.
type reader struct {
	*Backfill
	t     *testing.T
	store *hooked
	end   context.CancelFunc

	mu      sync.Mutex // guards below
	answers []*channel.ReadAnswer
}

// read runs f with a reader, by a clock that jumps.
func read(t *testing.T, change func(*Config), f func(*reader)) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		if change != nil {
			change(&cfg)
		}
		r := &reader{t: t, store: &hooked{Store: memory.New(memory.Default())}}
		log := slog.New(slog.DiscardHandler)
		r.Backfill = New(cfg, r.store, renewal.New(r.store, log, nil), func(a *channel.ReadAnswer) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.answers = append(r.answers, a)
		}, log)
		ctx, end := context.WithCancel(context.Background())
		r.end = end
		ended := make(chan struct{})
		go func() { // ends with ctx, below
			_ = r.Run(ctx)
			close(ended)
		}()
		f(r)
		end()
		<-ended
	})
}

// fill publishes n events on a channel and returns its epoch.
func (r *reader) fill(name string, n int) uint64 {
	ctx := context.Background()
	heads, err := r.store.Store.Heads(ctx, []history.HeadQuery{{Channel: name}})
	if err != nil {
		r.t.Fatal(err)
	}
	run := history.Run{Channel: name, Epoch: heads[0].Epoch, Head: heads[0].Offset}
	for i := range n {
		run.Events = append(run.Events, history.Event{Offset: run.Head + uint64(i) + 1, TimeMS: 1, Data: []byte("1")})
	}
	if _, err := r.store.Append(ctx, []history.Run{run}); err != nil {
		r.t.Fatal(err)
	}
	return run.Epoch
}

func (r *reader) add(name string, change func(*channel.ReadQuery)) {
	q := &channel.ReadQuery{Key: channel.ReadKey{Channel: name, Limit: 100}, Deadline: time.Now().Add(5 * time.Second), Gone: func() bool { return false }}
	if change != nil {
		change(q)
	}
	r.Add(q)
}

// rest waits until all that can happen by itself has happened, and returns the answers.
func (r *reader) rest() []*channel.ReadAnswer {
	time.Sleep(time.Second)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := r.answers
	r.answers = nil
	return answers
}

// Whatever comes back at once, the store has at most so many reads, and each question
// is answered.
func TestReadsInTheStoreAreCapped(t *testing.T) {
	read(t, func(c *Config) { c.Reads, c.Ranges = 3, 10 }, func(r *reader) {
		release := make(chan struct{})
		var mu sync.Mutex
		running, most, largest := 0, 0, 0
		r.store.read = func(ranges []history.Range) error {
			mu.Lock()
			running++
			most, largest = max(most, running), max(largest, len(ranges))
			mu.Unlock()
			<-release
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}
		const channels = 300
		for i := range channels {
			r.fill(fmt.Sprint("chat:", i), 2)
			r.add(fmt.Sprint("chat:", i), nil)
		}
		synctest.Wait()
		close(release)
		answers := r.rest()
		if len(answers) != channels || most != 3 || largest != 10 || r.peak.Load() != 3 {
			t.Errorf("%d answers, %d reads at once (told %d), %d channels in one", len(answers), most, r.peak.Load(), largest)
		}
		for _, a := range answers {
			if a.Result.Err != channel.ReadDone || len(a.Result.Events) != 2 {
				t.Fatalf("%+v", a.Result)
			}
		}
	})
}

// Who asks while a read of the same is in the store shares the next one: an answer is
// never older than its question, and never are two reads of a key there at once.
func TestQuestionsDuringAReadShareTheNextOne(t *testing.T) {
	read(t, nil, func(r *reader) {
		release := make(chan struct{})
		started := 0
		r.store.read = func([]history.Range) error {
			if started++; started == 1 {
				<-release
			}
			return nil
		}
		r.fill("chat:a", 1)
		r.add("chat:a", nil)
		time.Sleep(time.Second)
		r.fill("chat:a", 1)
		for range 200 {
			r.add("chat:a", nil)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if started != 1 || r.Depth() != 200 || r.Lag() < time.Second {
			t.Errorf("%d reads of one range are in the store, %d wait, the lag is %v", started, r.Depth(), r.Lag())
		}
		close(release)
		answers := r.rest()
		if started != 2 || len(answers) != 2 || len(answers[1].Askers) != 200 || answers[1].Result.Head != 2 {
			t.Errorf("%d reads, %d answers", started, len(answers))
		}
	})
}

// Nothing is read for who has left, or cannot be answered in time.
func TestNothingIsReadForWhoHasLeft(t *testing.T) {
	read(t, func(c *Config) { c.Reads = 1 }, func(r *reader) {
		release := make(chan struct{})
		reads := 0
		r.store.read = func([]history.Range) error {
			reads++
			<-release
			return nil
		}
		r.fill("chat:first", 1)
		r.add("chat:first", func(q *channel.ReadQuery) { q.Deadline = time.Now().Add(time.Minute) })
		time.Sleep(time.Second)
		left := false
		for i := range 50 {
			r.add(fmt.Sprint("chat:", i), func(q *channel.ReadQuery) { q.Gone = func() bool { return left } })
			r.add(fmt.Sprint("late:", i), nil)
		}
		left = true
		time.Sleep(6 * time.Second) // past their deadline
		close(release)
		answers := r.rest()
		failed := 0
		for _, a := range answers {
			if a.Result.Err == channel.ReadFailed {
				failed++
			}
		}
		if reads != 1 || len(answers) != 101 || failed != 100 || r.Depth() != 0 {
			t.Errorf("%d reads, %d answers, %d of them in vain; %d wait", reads, len(answers), failed, r.Depth())
		}
	})
}

// Past the bound a question is refused at once; at the end all that wait are.
func TestTooManyQuestionsAreRefused(t *testing.T) {
	read(t, func(c *Config) { c.Queue, c.Reads = 10, 1 }, func(r *reader) {
		release := make(chan struct{})
		r.store.read = func([]history.Range) error { <-release; return nil }
		r.fill("chat:0", 1)
		r.add("chat:0", nil)
		time.Sleep(time.Second)
		for i := range 12 {
			r.add(fmt.Sprint("chat:", i), nil)
		}
		answers := r.rest()
		if len(answers) != 2 || answers[0].Result.Err != channel.ReadBusy {
			t.Errorf("%d refused", len(answers))
		}
		r.end()
		close(release)
		if answers := r.rest(); len(answers) != 11 {
			t.Errorf("%d answered at the end", len(answers))
		}
		r.add("chat:0", nil)
		if answers := r.rest(); len(answers) != 1 || answers[0].Result.Err != channel.ReadBusy {
			t.Error("a question after the end")
		}
	})
}

// A channel that nobody has asked for before gets an epoch, and what is published on it
// in the meantime is told.
func TestAChannelWithoutARowGetsOne(t *testing.T) {
	read(t, nil, func(r *reader) {
		r.add("chat:new", nil)
		if a := r.rest(); len(a) != 1 || a[0].Result.Err != channel.ReadDone || a[0].Result.Epoch == 0 || a[0].Result.Floor != 1 {
			t.Errorf("%+v", a)
		}
		r.store.heads = func() {
			r.store.heads = nil
			r.fill("chat:newer", 3)
		}
		r.add("chat:newer", nil)
		if a := r.rest(); len(a) != 1 || a[0].Result.Head != 3 || len(a[0].Result.Events) != 3 {
			t.Errorf("%+v", a[0].Result)
		}
	})
}

func TestAStoreThatFailsIsSaid(t *testing.T) {
	read(t, nil, func(r *reader) {
		r.store.read = func([]history.Range) error { return errors.New("away") }
		r.add("chat:a", nil)
		if a := r.rest(); len(a) != 1 || a[0].Result.Err != channel.ReadFailed {
			t.Errorf("%+v", a)
		}
	})
}

// A store that has less than it has shown begins a new epoch; what an edge alone has seen
// counts only where that is allowed, and nothing for a channel that is not here.
func TestLessThanWasShownIsANewEpoch(t *testing.T) {
	read(t, nil, func(r *reader) {
		epoch := r.fill("chat:a", 2)
		ask := func(change func(*channel.ReadQuery)) *channel.ReadResult {
			r.add("chat:a", change)
			a := r.rest()
			if len(a) != 1 || a[0].Result.Err != channel.ReadDone {
				t.Fatalf("%+v", a)
			}
			return &a[0].Result
		}
		above := channel.Position{Epoch: epoch, Offset: 5}
		for name, change := range map[string]func(*channel.ReadQuery){
			"not here": func(q *channel.ReadQuery) { q.Mark.Shown = above },
			"not above": func(q *channel.ReadQuery) {
				q.Mark = channel.Mark{Here: true, Kept: true, Claims: true, Shown: channel.Position{Epoch: epoch, Offset: 2}}
			},
			"an edge, too soon": func(q *channel.ReadQuery) { q.Mark, q.Seen = channel.Mark{Here: true, Kept: true}, above },
		} {
			if res := ask(change); res.Epoch != epoch || res.Claimed {
				t.Errorf("%s: epoch %d, claimed %v", name, res.Epoch, res.Claimed)
			}
		}
		res := ask(func(q *channel.ReadQuery) { q.Mark = channel.Mark{Here: true, Shown: above} })
		if res.Epoch <= epoch || res.Claimed || res.Head != 2 {
			t.Errorf("shown: epoch %d, claimed %v, head %d", res.Epoch, res.Claimed, res.Head)
		}
		epoch = res.Epoch
		above.Epoch = epoch + 3
		res = ask(func(q *channel.ReadQuery) { q.Mark, q.Seen = channel.Mark{Here: true, Kept: true, Claims: true}, above })
		if res.Epoch <= above.Epoch || !res.Claimed {
			t.Errorf("an edge: epoch %d, claimed %v", res.Epoch, res.Claimed)
		}
	})
}

// Of the questions that share a read the newest says what was known of the channel.
func TestTheNewestMarkCounts(t *testing.T) {
	read(t, nil, func(r *reader) {
		epoch := r.fill("chat:a", 2)
		r.add("chat:a", nil) // it was not here yet
		r.add("chat:a", func(q *channel.ReadQuery) {
			q.Mark = channel.Mark{Here: true, Kept: true, Shown: channel.Position{Epoch: epoch, Offset: 5}}
		})
		a := r.rest()
		if len(a) != 1 || len(a[0].Askers) != 2 || !a[0].Query.Mark.Kept || a[0].Result.Epoch <= epoch {
			t.Errorf("%d answers, %+v", len(a), a[0])
		}
	})
}

// A stale answer renews nothing, and is not told.
func TestAStaleAnswerIsNotTold(t *testing.T) {
	read(t, nil, func(r *reader) {
		epoch := r.fill("chat:a", 2)
		r.store.heads = func() { // the primary has more than was read
			r.store.heads = nil
			r.fill("chat:a", 3)
		}
		r.add("chat:a", func(q *channel.ReadQuery) {
			q.Mark = channel.Mark{Here: true, Kept: true, Shown: channel.Position{Epoch: epoch, Offset: 5}}
		})
		if a := r.rest(); len(a) != 1 || a[0].Result.Err != channel.ReadFailed {
			t.Errorf("%+v", a[0].Result)
		}
	})
}
