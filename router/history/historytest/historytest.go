// Package historytest holds the promises of history.Store as tests. Every
// implementation runs all of them over real data; the crash test, the full disk,
// a comparison with the plain twin in memory, and the benchmarks are here as well.
//
// Tests of the stores call it. It starts goroutines only within a test, which
// waits for them.
package historytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// Open opens one more store over the same data. The suite closes it.
type Open func() (history.Store, error)

// Target is an implementation under test.
type Target struct {
	// New makes an empty place for data.
	New func(t testing.TB) Open
	// At is New for stores that have the time from now.
	At func(t testing.TB, now func() time.Time) Open
	// Mortal: what is stored ends with the store, and a second Open sees none
	// of it. The tests that open twice are left out.
	Mortal bool
}

// callTimeout bounds each call of a test: none needs a hundredth of it.
const callTimeout = 30 * time.Second

// Run runs the whole suite.
func Run(t *testing.T, target Target) {
	promises := []struct {
		name string
		test func(*testing.T, history.Store)
	}{
		{"NewChannelBeginsAtZeroWithAnEpoch", newChannelBeginsAtZero},
		{"OffsetsAreContiguous", offsetsAreContiguous},
		{"EveryFieldComesBack", everyFieldComesBack},
		{"ArgumentsAndResultsAreTheCallers", slicesAreTheCallers},
		{"LostRunHindersNoOther", lostRunHindersNoOther},
		{"RunForUnknownChannelIsLost", runForUnknownChannelIsLost},
		{"OfTwoRunsForOneChannelOneIsStored", oneOfTwoRuns},
		{"BigBatchIsStored", bigBatch},
		{"RefusedBatchLeavesNothing", refusedBatchLeavesNothing},
		{"MalformedRunIsRefused", malformedRunIsRefused},
		{"KeysAreFoundWithTheirFirstOffset", keysAreFound},
		{"LostRunLeavesNoKey", lostRunLeavesNoKey},
		{"KeysAreApartByChannelAndScope", keysAreApart},
		{"OffsetsGoUpTo2To53", hugeOffsets},
		{"NamesOf255BytesOfUnicode", unicodeNames},
		{"PositionsMayBeAnything", positionsMayBeAnything},
		{"ReverseReadsNewestFirst", reverseReadsNewestFirst},
		{"LimitAndMoreAgree", limitAndMore},
		{"MaxBytesBoundsAPage", maxBytes},
		{"ReadCreatesNoRow", readCreatesNoRow},
		{"ManyRangesInOrder", manyRangesInOrder},
		{"ManyRangesOfOneLongChannel", manyRangesOfOneChannel},
		{"BadRangeIsAnError", badRange},
		{"PagesAgreeWhileEventsCome", pagesAgree},
		{"TrimBySize", trimBySize},
		{"TrimByAgeTakesAPrefix", trimByAge},
		{"TrimGoesInBoundedSteps", trimInSteps},
		{"TrimKeepsToItsNamespaces", trimByNamespace},
		{"TrimNeverMovesAHead", trimKeepsHeads},
		{"TrimForgetsKeysByTheirWindow", trimForgetsKeys},
		{"RenewalKeepsWhatIsStored", renewalKeeps},
		{"RenewalIsAFence", renewalIsAFence},
		{"RenewedEpochIsAboveAllSeen", renewedAboveSeen},
		{"RenewalNamesItsEpoch", renewalNamesItsEpoch},
		{"RenewedChannelIsTrimmed", renewedIsTrimmed},
		{"OneOfManyRenewersWins", oneRenewerWins},
		{"KeysComeBackAfterTheirWindow", keysComeBack},
		{"RetentionThatEmptiesAChannelThenAPublish", emptiedAndPublished},
		{"SizeThatShrinksReachesQuietChannels", sizeThatShrinks},
		{"PublishersAndForgettingLoseNothing", forgetRaces},
		{"TwoBelieversLoseNothing", twoBelievers},
		{"TwoCreatorsReadOneEpoch", twoCreators},
		{"EndedContextIsAnError", endedContext},
		{"CloseIsIdempotent", closeIsIdempotent},
		{"EmptyCallsAreFine", emptyCalls},
	}
	for _, p := range promises {
		t.Run(p.name, func(t *testing.T) {
			open := target.New(t)
			p.test(t, opened(t, open))
		})
	}
	forgetful := []struct {
		name string
		test func(*idler)
	}{
		{"IdleRowsGoAndComeBackInALargerEpoch", idleRowsGo},
		{"KeysKeepTheirRows", keysKeepRows},
		{"EpochsFollowThoseForgotten", epochsFollowForgotten},
		{"UseEndsIdleness", useEndsIdleness},
		{"RulesNeitherHurryNorStopForgetting", rulesOutliveRows},
		{"ForgettingGoesInBoundedSteps", forgetInSteps},
		{"ClockThatWasAheadKeepsNothingForLong", clockAhead},
	}
	for _, p := range forgetful {
		t.Run(p.name, func(t *testing.T) {
			c := newClock()
			p.test(&idler{c, t, opened(t, target.At(t, c.now))})
		})
	}
	if target.Mortal {
		return
	}
	reopened := []struct {
		name string
		test func(*testing.T, Open)
	}{
		{"ReopenKeepsEverything", reopenKeepsEverything},
		{"TwoStoresOverOneDatabase", twoStores},
		{"TwoStoresOpenAtOnce", twoOpens},
		{"TwoTrimmersCountOnce", twoTrimmers},
		{"TwoRetentionsForgetWhatTwoRoutersUse", func(t *testing.T, open Open) {
			raceForgetting(t, []history.Store{opened(t, open), opened(t, open)})
		}},
		{"AgreesWithTheStoreInMemory", agreesWithMemory},
	}
	for _, p := range reopened {
		t.Run(p.name, func(t *testing.T) { p.test(t, target.New(t)) })
	}
}

func opened(t testing.TB, open Open) history.Store {
	t.Helper()
	s, err := open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	closeAfter(t, s)
	return s
}

func closeAfter(t testing.TB, s history.Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func callContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	return ctx
}

// seeded is a random source whose seed is in the test's log.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// now in the stores' unit: events that no test's TTL reaches.
func nowMS() int64 { return time.Now().UnixMilli() }

// eventsAfter makes n plain events behind head.
func eventsAfter(head uint64, n int) []history.Event {
	events := make([]history.Event, n)
	for i := range events {
		offset := head + 1 + uint64(i)
		events[i] = history.Event{Offset: offset, TimeMS: nowMS(), Data: fmt.Appendf(nil, `{"n":%d}`, offset)}
	}
	return events
}

// runAfter is n plain events behind h.
func runAfter(h history.Head, n int) history.Run {
	return history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Events: eventsAfter(h.Offset, n)}
}

func mustHead(t testing.TB, s history.Store, channel string, keys ...history.Key) history.Head {
	t.Helper()
	heads, err := s.Heads(callContext(t), []history.HeadQuery{{Channel: channel, Keys: keys}})
	if err != nil {
		t.Fatalf("head of %q: %v", channel, err)
	}
	if len(heads) != 1 || heads[0].Channel != channel {
		t.Fatalf("head of %q: got %+v", channel, heads)
	}
	return heads[0]
}

func mustAppend(t testing.TB, s history.Store, runs ...history.Run) []history.Outcome {
	t.Helper()
	outcomes, err := s.Append(callContext(t), runs)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	if len(outcomes) != len(runs) {
		t.Fatalf("append of %d runs: %d outcomes", len(runs), len(outcomes))
	}
	return outcomes
}

// mustStore appends and demands that every run is stored.
func mustStore(t testing.TB, s history.Store, runs ...history.Run) {
	t.Helper()
	for i, outcome := range mustAppend(t, s, runs...) {
		if outcome != history.Stored {
			t.Fatalf("run of %q behind %d: %v, want stored", runs[i].Channel, runs[i].Head, outcome)
		}
	}
}

// fill stores n plain events in a channel and returns its head.
func fill(t testing.TB, s history.Store, channel string, n int) history.Head {
	t.Helper()
	if h := mustHead(t, s, channel); n > 0 {
		mustStore(t, s, runAfter(h, n))
	}
	return mustHead(t, s, channel)
}

func mustRead(t testing.TB, s history.Store, ranges ...history.Range) []history.Page {
	t.Helper()
	pages, err := s.Read(callContext(t), ranges)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	if len(pages) != len(ranges) {
		t.Fatalf("read of %d ranges: %d pages", len(ranges), len(pages))
	}
	for i, p := range pages {
		if p.Channel != ranges[i].Channel {
			t.Fatalf("page %d is of %q, want %q", i, p.Channel, ranges[i].Channel)
		}
		checkPage(t, ranges[i], p)
	}
	return pages
}

// checkPage asserts what holds for every page.
func checkPage(t testing.TB, r history.Range, p history.Page) {
	t.Helper()
	if !p.Exists {
		if p.Epoch != 0 || p.Head != 0 || p.First != 0 || len(p.Events) != 0 || p.More {
			t.Fatalf("page of a channel without row is not zero: %+v", p)
		}
		return
	}
	if p.Epoch == 0 || p.First == 0 || p.First > p.Head+1 || len(p.Events) > r.Limit {
		t.Fatalf("page for %+v: epoch %d, first %d, head %d, %d events", r, p.Epoch, p.First, p.Head, len(p.Events))
	}
	for i, e := range p.Events {
		if e.Offset < p.First || e.Offset > p.Head {
			t.Fatalf("page for %+v: offset %d is outside of %d..%d", r, e.Offset, p.First, p.Head)
		}
		if i > 0 && !follows(r, p.Events[i-1].Offset, e.Offset) {
			t.Fatalf("page for %+v: offset %d after %d", r, e.Offset, p.Events[i-1].Offset)
		}
	}
}

func follows(r history.Range, a, b uint64) bool {
	if r.Reverse {
		return b == a-1
	}
	return b == a+1
}

// all reads a channel from its first event to its head, a few at a time.
func all(t testing.TB, s history.Store, channel string) (history.Page, []history.Event) {
	t.Helper()
	var events []history.Event
	after := uint64(0)
	for {
		p := mustRead(t, s, history.Range{Channel: channel, After: after, Limit: 500})[0]
		events = append(events, p.Events...)
		if !p.More {
			if n := uint64(len(events)); p.Exists && p.Head+1-p.First != n {
				t.Fatalf("channel %q: first %d, head %d, but %d events", channel, p.First, p.Head, n)
			}
			return p, events
		}
		after = events[len(events)-1].Offset
	}
}

func wantRefused(t testing.TB, err error) {
	t.Helper()
	var refused *history.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a RefusedError", err)
	}
}
