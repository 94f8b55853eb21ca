package router

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// An event that the store refuses leaves a hole, and the row is not where it was: the
// channel goes on behind what is there, and the writer does not ask for ever.
func TestAHoleBehindARowThatMovedIsWrittenAround(t *testing.T) {
	n := start(t, nil, nil)
	n.store.onAppend(func(_ context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		for _, e := range runs[0].Events {
			if strings.Contains(string(e.Data), "refused") {
				return nil, &history.RefusedError{Err: errAway}
			}
		}
		return next()
	})
	first := n.publish1("later:a", `1`, "")
	n.eventuallyStored("later:a", "1")
	epoch := n.row("later:a").Epoch
	other := history.Run{Channel: "later:a", Epoch: epoch, Head: first.Offset, Events: []history.Event{{Offset: first.Offset + 1, Data: []byte(`"another's"`)}}}
	if outcomes, err := n.store.Store.Append(testContext(t), []history.Run{other}); err != nil || outcomes[0] != history.Stored {
		t.Fatalf("another writes: %v, %v", outcomes, err)
	}
	_, _ = n.publishErr("later:a", `"refused"`, "")
	n.publish1("later:a", `3`, "")
	n.eventuallyStored("later:a", `1 "another's" 3`)
	if head := n.row("later:a"); head.Epoch <= epoch {
		t.Errorf("no new epoch tells that something is missing: %v, it was %d", head, epoch)
	}
}

// row is what the store has of a channel.
func (n *node) row(channel string) history.Head {
	n.t.Helper()
	heads, err := n.store.Store.Heads(testContext(n.t), []history.HeadQuery{{Channel: channel}})
	if err != nil {
		n.t.Fatal(err)
	}
	return heads[0]
}

// A write of unknown outcome was stored, and another has written behind it: what is ours
// is recognised, and not written once more.
func TestAWriteBeforeAnothersIsRecognised(t *testing.T) {
	n := start(t, nil, nil)
	n.publish1("later:a", `1`, "")
	n.eventuallyStored("later:a", "1")
	epoch := n.row("later:a").Epoch
	hold := make(chan struct{})
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		<-hold
		n.store.onAppend(nil)
		if _, err := next(); err != nil {
			t.Error(err)
		}
		other := history.Run{Channel: "later:a", Epoch: epoch, Head: runs[0].NewHead(), Events: []history.Event{{Offset: runs[0].NewHead() + 1, Data: []byte(`"another's"`)}}}
		if outcomes, err := n.store.Store.Append(ctx, []history.Run{other}); err != nil || outcomes[0] != history.Stored {
			t.Errorf("another writes: %v, %v", outcomes, err)
		}
		return nil, errAway
	})
	n.publish1("later:a", `2`, "")
	n.publish1("later:a", `3`, "")
	close(hold)
	n.eventuallyStored("later:a", `1 2 "another's" 3`)
}

// What is being written is let go meanwhile, since too much is unwritten: the write counts
// all the same.
func TestWhatIsLetGoWhileItIsWrittenCounts(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.AsyncBytes, c.TailEvents, c.TailAge = 400, 1, time.Nanosecond })
	hold, held := make(chan struct{}), make(chan struct{})
	n.store.onAppend(func(_ context.Context, _ []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		n.store.onAppend(nil)
		close(held)
		<-hold
		return next()
	})
	n.publish1("later:a", `1`, "")
	<-held
	for i := range 4 {
		n.publish1("later:a", fmt.Sprint(i+2), "")
	}
	close(hold)
	n.eventuallyStored("later:a", "1 5")
	if b := n.sequencer.behind.bytes.Load(); b != 0 {
		t.Errorf("%d bytes are unwritten when all is written", b)
	}
}

// The same with a write of unknown outcome: what is left of it here is recognised.
func TestWhatIsLetGoWhileItIsWrittenIsRecognised(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.AsyncBytes, c.TailEvents, c.TailAge = 3*(eventBytes+1), 2, time.Nanosecond })
	hold, held := make(chan bool), make(chan struct{})
	n.store.onAppend(func(_ context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		held <- struct{}{}
		if <-hold {
			n.store.onAppend(nil)
			if outcomes, err := next(); err != nil || outcomes[0] != history.Stored || len(runs[0].Events) != 3 {
				t.Errorf("%d events: %v, %v", len(runs[0].Events), outcomes, err)
			}
		}
		return nil, errAway
	})
	n.publish1("later:a", `1`, "")
	<-held
	n.publish1("later:a", `2`, "")
	n.publish1("later:a", `3`, "")
	hold <- false
	<-held
	n.publish1("later:a", `4`, "") // lets go of 1 and 2
	hold <- true
	n.eventuallyStored("later:a", "1 2 3 4")
}
