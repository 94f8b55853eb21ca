package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/renewal"
	"github.com/spillway-io/spillway/router/views"
)

var errAway = errors.New("the store is away")

// hooked is a store that fails as a test wants it to, and refuses events that are bad.
type hooked struct {
	*memory.Store
	heads, read error
	append      func(next func() error) error
	appends     int
}

func (s *hooked) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	if s.heads != nil {
		return nil, s.heads
	}
	return s.Store.Heads(ctx, q)
}

func (s *hooked) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	if s.read != nil {
		return nil, s.read
	}
	return s.Store.Read(ctx, r)
}

func (s *hooked) Append(ctx context.Context, runs []history.Run) (outcomes []history.Outcome, err error) {
	s.appends++
	for _, r := range runs {
		for _, e := range r.Events {
			if string(e.Data) == "bad" {
				return nil, &history.RefusedError{Err: errors.New("bad")}
			}
		}
	}
	next := func() error {
		outcomes, err = s.Store.Append(ctx, runs)
		return err
	}
	if s.append != nil {
		if err := s.append(next); err != nil {
			return nil, err
		}
		return outcomes, nil
	}
	return outcomes, next()
}

type members struct{}

var alone = presence.NewSnapshot(nil, 1)

func (members) Snapshot() *presence.Snapshot { return alone }
func (members) Changed() <-chan struct{}     { return nil }
func (members) Incarnation() uint64          { return 0 }
func (members) LeaseLosses() uint64          { return 0 }

func start() (*Writer, *hooked) {
	store := &hooked{Store: memory.New(memory.Default())}
	log := slog.New(slog.DiscardHandler)
	return New(Config{
		Committers: 1, BatchEvents: 512, BatchBytes: 1 << 20, StoreTimeout: time.Second, RetryFor: time.Minute, RetryWait: 1, Now: time.Now,
	}, store, nil, views.New(views.Config{Self: "a"}, members{}), renewal.New(store, log, nil), log), store
}

// pubs are publications, one a word: data, or data=key.
func pubs(words string) (all []*channel.Publication) {
	for _, word := range strings.Fields(words) {
		data, key, _ := strings.Cut(word, "=")
		p := &channel.Publication{
			Channel: "chat:a", Namespace: &namespace.Namespace{}, Call: channel.NewCall(1), Since: time.Now(),
			Event: history.Event{Data: []byte(data), Key: key},
		}
		p.Take()
		all = append(all, p)
	}
	return all
}

func runOf(name string, all []*channel.Publication) *channel.Run {
	return &channel.Run{Channel: name, Load: true, Pubs: all}
}

// told is what a run says, in short.
func told(r *channel.Run) string {
	var all []string
	for _, p := range r.Parts {
		for _, e := range p.Events {
			all = append(all, fmt.Sprintf("%s is %d", e.Data, e.Offset))
		}
	}
	for _, a := range r.Answers {
		switch {
		case a.Result.Repeat:
			all = append(all, fmt.Sprintf("%s repeats %d", a.Pub.Event.Data, a.Result.Offset))
		case a.Result.Code != codes.OK:
			all = append(all, fmt.Sprintf("%s: %v", a.Pub.Event.Data, a.Result.Code))
		}
	}
	for _, p := range r.Back {
		all = append(all, fmt.Sprintf("%s again", p.Event.Data))
	}
	if r.Lost {
		all = append(all, "lost")
	}
	if r.Attempt != nil {
		all = append(all, fmt.Sprintf("%d unknown", len(r.Attempt.Pubs)))
	}
	return strings.Join(all, ", ")
}

// commit writes runs, and holds that of each publication exactly one thing is said.
func commit(t *testing.T, w *Writer, runs ...*channel.Run) error {
	t.Helper()
	var all []*channel.Publication
	for _, r := range runs {
		all = append(all, r.Pubs...)
	}
	err := w.commit(context.Background(), runs)
	said := make(map[*channel.Publication]int)
	for _, r := range runs {
		for _, a := range r.Answers {
			said[a.Pub]++
		}
		for _, p := range r.Back {
			said[p]++
		}
	}
	for _, p := range all {
		if said[p] != 1 {
			t.Errorf("of %s %d things are said", p.Event.Data, said[p])
		}
	}
	return err
}

func TestAStoredRun(t *testing.T) {
	w, _ := start()
	r := runOf("chat:a", pubs("a b=k c=k d"))
	if err := commit(t, w, r); err != nil || told(r) != "a is 1, b is 2, d is 3, c repeats 2" || r.Row == nil {
		t.Errorf("%v, %s", err, told(r))
	}
	r = runOf("chat:a", pubs("e=k f"))
	if err := commit(t, w, r); err != nil || told(r) != "f is 4, e repeats 2" {
		t.Errorf("%v, %s", err, told(r))
	}
	// What is believed is right: nothing is loaded.
	r = &channel.Run{Channel: "chat:a", Believed: r.Row.Position, Pubs: pubs("g")}
	r.Believed.Offset = 4
	if err := commit(t, w, r); err != nil || told(r) != "g is 5" || r.Row != nil {
		t.Errorf("%v, %s", err, told(r))
	}
}

// A run whose belief is wrong comes again, so often, and no other run with it.
func TestALostRaceComesAgain(t *testing.T) {
	w, _ := start()
	lost := &channel.Run{Channel: "chat:a", Believed: channel.Position{Epoch: 1, Offset: 7}, Pubs: pubs("a b")}
	stored := runOf("chat:b", pubs("c"))
	if err := commit(t, w, lost, stored); err != nil || told(lost) != "a again, b again, lost" || told(stored) != "c is 1" {
		t.Errorf("%v; %s; %s", err, told(lost), told(stored))
	}
	all := lost.Back
	all[0].Races = maxRaces
	lost = &channel.Run{Channel: "chat:a", Believed: channel.Position{Epoch: 1, Offset: 7}, Pubs: all}
	if err := commit(t, w, lost); err != nil || told(lost) != "a: Unavailable, b again, lost" {
		t.Errorf("%v; %s", err, told(lost))
	}
}

// The store refuses what one event carries: it alone fails, the others have no hole.
func TestABadEventFailsAlone(t *testing.T) {
	for _, words := range []string{"bad", "bad a b c", "a b c bad", "a bad b bad c d=k e=k", "bad bad bad"} {
		w, _ := start()
		r, other := runOf("chat:a", pubs(words)), runOf("chat:b", pubs("x y"))
		if err := commit(t, w, r, other); err != nil || told(other) != "x is 1, y is 2" {
			t.Fatalf("%s: %v, %s", words, err, told(other))
		}
		good, next := 0, uint64(1)
		for _, p := range r.Parts {
			for _, e := range p.Events {
				if good++; e.Offset != next || p.Head >= e.Offset {
					t.Errorf("%s: %s", words, told(r))
				}
				next++
			}
		}
		bad := strings.Count(words, "bad")
		if repeats := strings.Count(words, "k") / 2; good != len(strings.Fields(words))-bad-repeats || strings.Count(told(r), "InvalidArgument") != bad {
			t.Errorf("%s: %s", words, told(r))
		}
	}
}

// A store that fails before anything was written: all comes again, or is not stored.
func TestAStoreThatIsAway(t *testing.T) {
	w, store := start()
	store.heads = errAway
	all := pubs("a b=k c=k")
	all[1].Since = time.Now().Add(-time.Hour)
	all[2].Since, all[2].Uncertain = all[1].Since, true
	r := runOf("chat:a", all)
	if err := commit(t, w, r); !errors.Is(err, errAway) || told(r) != "b: Unavailable, c: Unavailable, a again" {
		t.Errorf("%v, %s", err, told(r))
	}
	if r.Answers[0].Result.Message != channel.NotStored.Message || r.Answers[1].Result.Message != channel.UnknownOutcome.Message {
		t.Errorf("%+v", r.Answers)
	}
}

// again is the run that follows one of unknown outcome.
func again(r *channel.Run) *channel.Run {
	next := runOf("chat:a", r.Back)
	next.Unknown = append(append(next.Unknown, r.Unknown...), *r.Attempt)
	return next
}

// A run that the store has though it did not say so is found, and not stored again.
func TestAnUnknownRunIsFound(t *testing.T) {
	w, store := start()
	store.append = func(next func() error) error { return errors.Join(next(), errAway) }
	r := runOf("chat:a", pubs("a b=k c=k"))
	if err := commit(t, w, r); !errors.Is(err, errAway) || told(r) != "a again, b again, c again, 2 unknown" {
		t.Errorf("%v, %s", err, told(r))
	}
	store.append = nil
	next := again(r)
	if err := commit(t, w, next); err != nil || len(next.Found) != 1 || len(next.Over) != 1 || told(next) != "c repeats 2" {
		t.Errorf("%v, %d found, %s", err, len(next.Found), told(next))
	}
	if a := next.Answers[0]; string(a.Pub.Event.Data) != "a" || a.Result.Offset != 1 {
		t.Errorf("%+v", a)
	}
}

// One that it has not: another attempt from the same head is made, and of the two the
// fence lets one win.
func TestAnUnknownRunIsTriedAgain(t *testing.T) {
	w, store := start()
	store.append = func(func() error) error { return errAway }
	r := runOf("chat:a", pubs("a b"))
	if err := commit(t, w, r); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	store.append = nil
	next := again(r)
	if err := commit(t, w, next); err != nil || len(next.Over) != 0 || told(next) != "a is 1, b is 2" {
		t.Errorf("%v, %d over, %s", err, len(next.Over), told(next))
	}
	// What another has stored there meanwhile is not ours.
	store.append = func(func() error) error { return errAway }
	r = runOf("chat:a", pubs("c"))
	_ = commit(t, w, r)
	store.append = nil
	_ = commit(t, w, runOf("chat:a", pubs("x")))
	next = again(r)
	if err := commit(t, w, next); err != nil || len(next.Over) != 1 || len(next.Found) != 0 || told(next) != "c is 4" {
		t.Errorf("%v, %d over, %s", err, len(next.Over), told(next))
	}
}

// What is trimmed away, or of another epoch, nobody will ever know: without a key that
// is said, with one the key decides.
func TestAnUnknownRunThatIsGone(t *testing.T) {
	w, store := start()
	store.append = func(next func() error) error { return errors.Join(next(), errAway) }
	r := runOf("chat:a", pubs("a b=k"))
	_ = commit(t, w, r)
	store.append = nil
	rows, err := store.Renew(context.Background(), []history.Renewal{{Channel: "chat:a", Epoch: 1, Head: 2, Floor: 5}})
	if err != nil || rows[0].Epoch <= 5 {
		t.Fatal(rows, err)
	}
	next := again(r)
	if err := commit(t, w, next); err != nil || told(next) != "a: Unavailable, b repeats 2" || next.Answers[0].Result != channel.UnknownOutcome {
		t.Errorf("%v, %s", err, told(next))
	}
}

// Nothing is stored while it cannot be read what became of an unknown run.
func TestAnUnknownRunThatCannotBeRead(t *testing.T) {
	w, store := start()
	store.append = func(next func() error) error { return errors.Join(next(), errAway) }
	r := runOf("chat:a", pubs("a"))
	_ = commit(t, w, r)
	store.append, store.read, store.appends = nil, errAway, 0
	next := again(r)
	if err := commit(t, w, next); !errors.Is(err, errAway) || store.appends != 0 || len(next.Over) != 0 || told(next) != "a again" {
		t.Errorf("%v, %d appends, %s", err, store.appends, told(next))
	}
}

// The second half of a batch ends unknown after the first was stored.
func TestHalfOfABatchIsUnknown(t *testing.T) {
	w, store := start()
	stored := 0
	store.append = func(next func() error) error {
		if stored++; stored == 1 {
			return next()
		}
		return errAway
	}
	r := runOf("chat:a", pubs("a b c bad"))
	r.Unknown = make([]channel.UnknownRun, channel.MaxUnknown)
	for i := range r.Unknown { // what was stored has ended them
		r.Unknown[i] = channel.UnknownRun{Run: history.Run{Channel: "chat:a", Epoch: 1, Events: make([]history.Event, 1)}}
	}
	if err := commit(t, w, r); !errors.Is(err, errAway) || told(r) != "a is 1, b is 2, c again, bad again, 1 unknown" {
		t.Errorf("%v, %s", err, told(r))
	}
}

// Too many unknown runs: without a key that is said at once.
func TestTooManyUnknownRuns(t *testing.T) {
	w, store := start()
	store.append = func(func() error) error { return errAway }
	r := runOf("chat:a", pubs("a b=k"))
	r.Unknown = make([]channel.UnknownRun, channel.MaxUnknown)
	for i := range r.Unknown {
		r.Unknown[i] = channel.UnknownRun{Run: history.Run{Channel: "chat:a", Epoch: 1, Events: make([]history.Event, 1)}}
	}
	if err := commit(t, w, r); !errors.Is(err, errAway) || told(r) != "a: Unavailable, b again, 2 unknown" {
		t.Errorf("%v, %s", err, told(r))
	}
}

// A store that has less than it has shown: the run is numbered in a new epoch.
func TestARestoredStoreBeginsAnEpoch(t *testing.T) {
	w, _ := start()
	r := runOf("chat:a", pubs("a"))
	r.Shown = channel.Position{Epoch: 9, Offset: 4}
	if err := commit(t, w, r); err != nil || told(r) != "a is 1" || r.Parts[0].Epoch <= 9 || r.Row.Epoch <= 9 {
		t.Errorf("%v, %s in epoch %d", err, told(r), r.Row.Epoch)
	}
}
