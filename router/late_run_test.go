package router

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/router/history"
)

// A run that was given up is committed after all, when the head has been read again
// and nothing is published any more: whoever asks is told of it.
func TestARunThatLandsLateIsTold(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.StoreTimeout, c.RetryFor = 100*time.Millisecond, 50*time.Millisecond })
	epoch := n.fill("chat:a", 1)
	var given []history.Run
	n.store.onAppend(func(ctx context.Context, runs []history.Run, _ func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		given = runs
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if _, err := n.publishErr("chat:a", `2`, ""); status.Code(err) != codes.Unavailable {
		t.Fatalf("a publish that is given up: %v", err)
	}
	n.store.onAppend(nil)
	e := n.sync()
	if a := e.ask(position("chat:a", epoch, 1)); a.Head != 1 || !a.Recovered {
		t.Fatalf("before it lands: %v", a)
	}
	if outcomes, err := n.store.Store.Append(testContext(t), given); err != nil || outcomes[0] != history.Stored {
		t.Fatalf("it does not land: %v, %v", outcomes, err)
	}
	if a := e.ask(position("chat:a", epoch, 1)); a.Head != 2 || !a.Recovered || offsetsOf(a.Events) != "[2]" {
		t.Errorf("after it has landed: %v", a)
	}
	// A run of this router that is stored ends the doubt: nothing older can land behind it.
	n.publish1("chat:a", `3`, "")
	_, _, before := n.store.counts()
	if a := e.ask(position("chat:a", epoch, 2)); offsetsOf(a.Events) != "[3]" {
		t.Errorf("after the next one: %v", a)
	}
	if _, _, reads := n.store.counts(); reads != before {
		t.Errorf("%d reads of the store for what the tail has", reads-before)
	}
}
