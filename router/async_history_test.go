package router

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// page is what a backend reads of later:a after an offset, in one line.
func (n *node) page(after uint64) string {
	n.t.Helper()
	r, err := n.hist.ReadHistory(testContext(n.t), &routerv1.ReadHistoryRequest{Channel: "later:a", Offset: &after})
	if status.Code(err) == codes.Unavailable && detail[*errdetails.RetryInfo](err) != nil {
		return "later"
	}
	if err != nil {
		n.t.Fatal(err)
	}
	var texts []string
	for _, e := range r.Events {
		texts = append(texts, e.GetJson())
	}
	return fmt.Sprintf("%s of %d..%d more %v", strings.Join(texts, " "), r.First, r.Head, r.More)
}

func (n *node) eventuallyPage(after uint64, want string) {
	n.t.Helper()
	eventually(n.t, want, func() bool { return n.page(after) == want })
}

// Past the bound of what may be unwritten history has a hole until the store is back: a
// page that begins before it has to wait, one behind it does not claim what is before.
func TestAsyncHistoryHidesNoHole(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.AsyncBytes, c.CacheBytes = 64<<10, 200<<10 })
	n.publish1("later:a", `0`, "")
	n.eventuallyStored("later:a", "0")
	n.store.away(true)
	big := `"` + strings.Repeat("x", 20<<10) + `"`
	for range 5 {
		n.publish1("later:a", big, "")
	}
	n.publish1("later:a", `1`, "")
	n.publish1("later:a", `2`, "")
	if got := n.page(0); got != "later" {
		t.Errorf("before the hole: %s", got)
	}
	if got := n.page(1); got != "later" {
		t.Errorf("in the hole: %s", got)
	}
	if got := n.page(6); !strings.HasPrefix(got, "1 2 of ") || strings.Contains(got, "of 1.") || !strings.HasSuffix(got, "..8 more false") {
		t.Errorf("behind the hole: %s", got)
	}
	n.store.away(false)
	eventually(t, "what is left is written", func() bool { return n.sequencer.behind.queued.Load() == 0 })
	if got, all := n.page(0), n.texts("later:a"); !strings.HasPrefix(got, all+" of 1..") || !strings.HasSuffix(all, " 1 2") {
		t.Errorf("with the store: %s; it has %s", got, all)
	}
}

// A router that took a channel over while the store was away does not claim that nothing
// was before it, and asks the store as soon as that answers, published or not.
func TestAsyncHistoryWaitsForWhatTheStoreHas(t *testing.T) {
	for _, published := range []bool{false, true} {
		t.Run(fmt.Sprint("published ", published), func(t *testing.T) {
			shared := memory.New(memory.Default())
			a := start(t, shared, quick)
			a.publish1("later:a", `1`, "")
			a.publish1("later:a", `2`, "")
			a.eventuallyStored("later:a", "1 2")
			b := start(t, shared, func(c *Config) { quick(c); c.ID = "r2" })
			b.members.set(snapshotOf(5, routerMember("r2", "")))
			b.store.away(true)
			e := b.sync()
			blind := e.ask(&gatewayv1.Ask{Channel: "later:a"})
			if again := e.ask(&gatewayv1.Ask{Channel: "later:a"}); again.Epoch != blind.Epoch {
				t.Errorf("an epoch for each look: %v, %v", blind, again)
			}
			if got := b.page(0); got != "later" {
				t.Errorf("without the store: %s", got)
			}
			want := "1 2 of 1..2 more false"
			if published {
				b.publish1("later:a", `3`, "")
				if got := b.page(0); got != "later" {
					t.Errorf("without the store: %s", got)
				}
				want = "1 2 3 of 1..3 more false" // once it is written
			}
			b.store.away(false)
			b.eventuallyPage(0, want)
			if after := e.ask(&gatewayv1.Ask{Channel: "later:a"}); after.Epoch <= blind.Epoch || after.Head < 2 {
				t.Errorf("with the store: %v, before %v", after, blind)
			}
		})
	}
}

// What is not written yet follows what retention has left, and the oldest offset told is
// one that is known to be there.
func TestAsyncHistoryOfWhatIsNotWritten(t *testing.T) {
	shared := memory.New(memory.Default())
	a := start(t, shared, quick)
	a.publish1("later:a", `1`, "")
	a.publish1("later:a", `2`, "")
	a.eventuallyStored("later:a", "1 2")
	b := start(t, shared, func(c *Config) { quick(c); c.ID = "r2" })
	b.members.set(snapshotOf(5, routerMember("r2", "")))
	hold := make(chan struct{})
	b.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		<-hold
		return next()
	})
	b.publish1("later:a", `3`, "")
	b.store.away(true)
	if got := b.page(2); got != "3 of 3..3 more false" {
		t.Errorf("while the store is away: %s", got)
	}
	if got := b.page(0); got != "later" {
		t.Errorf("what only the store has: %s", got)
	}
	b.store.away(false)
	b.eventuallyPage(0, "1 2 of 1..3 more true")
	if got := b.page(2); got != "3 of 1..3 more false" {
		t.Errorf("behind what the store has: %s", got)
	}
	if _, err := shared.Trim(testContext(t), []history.Retention{{Namespace: "later", TTL: time.Nanosecond}}, 0, 100); err != nil {
		t.Fatal(err)
	}
	b.eventuallyPage(0, "3 of 3..3 more false")
	close(hold)
	b.eventuallyStored("later:a", "3")
}

// A read that shows that the store has lost what it had begins a new epoch, though
// nothing is published.
func TestAsyncHistoryFindsWhatTheStoreLost(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		n := start(t, b.store, func(c *Config) { quick(c); c.TailEvents, c.TailAge = 1, time.Millisecond })
		before := n.publish1("later:a", `1`, "")
		n.eventuallyStored("later:a", "1")
		b.save()
		n.publish1("later:a", `2`, "")
		n.publish1("later:a", `3`, "")
		n.eventuallyStored("later:a", "1 2 3")
		eventually(t, "nothing is unwritten", func() bool { return n.sequencer.behind.queued.Load() == 0 })
		b.restore()
		n.eventuallyPage(0, "1 of 1..1 more false")
		if got := counted(n.metrics.asyncLost); got != 2 {
			t.Errorf("%v events counted as lost", got)
		}
		if after := n.publish1("later:a", `4`, ""); after.Epoch == before.Epoch || after.Offset != 2 {
			t.Errorf("placed %v, before %v", after, before)
		}
	})
}
