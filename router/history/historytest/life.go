package historytest

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
)

// calls is every method but Close, each with arguments that do something.
func calls(h history.Head) map[string]func(context.Context, history.Store) error {
	return map[string]func(context.Context, history.Store) error{
		"append": func(ctx context.Context, s history.Store) error {
			_, err := s.Append(ctx, []history.Run{runAfter(h, 1)})
			return err
		},
		"heads": func(ctx context.Context, s history.Store) error {
			_, err := s.Heads(ctx, []history.HeadQuery{{Channel: h.Channel}, {Channel: "chat:unseen"}})
			return err
		},
		"read": func(ctx context.Context, s history.Store) error {
			_, err := s.Read(ctx, []history.Range{{Channel: h.Channel, Limit: 10}})
			return err
		},
		"renew": func(ctx context.Context, s history.Store) error {
			_, err := s.Renew(ctx, []history.Renewal{{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset}})
			return err
		},
		"trim": func(ctx context.Context, s history.Store) error {
			_, err := s.Trim(ctx, []history.Retention{{Namespace: "chat", Size: 1}}, time.Second, 100)
			return err
		},
		"forget": func(ctx context.Context, s history.Store) error {
			_, err := s.Forget(ctx, time.Hour, 100)
			return err
		},
		"keep": func(ctx context.Context, s history.Store) error {
			return s.Keep(ctx, []string{h.Channel})
		},
	}
}

func endedContext(t *testing.T, s history.Store) {
	h := fill(t, s, "chat:a", 3)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for name, call := range calls(h) {
		if err := call(cancelled, s); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
		if err := call(expired, s); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s with an expired context: %v", name, err)
		}
	}
	wantLeft(t, s, "chat:a", 1, 3) // none of it happened, and the store goes on
	mustStore(t, s, runAfter(h, 1))
}

func closeIsIdempotent(t *testing.T, s history.Store) {
	h := fill(t, s, "chat:a", 3)
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	for name, call := range calls(h) {
		if err := call(callContext(t), s); !errors.Is(err, history.ErrClosed) {
			t.Errorf("%s after close: %v, want ErrClosed", name, err)
		}
	}
}

func reopenKeepsEverything(t *testing.T, open Open) {
	s := opened(t, open)
	run := runAfter(mustHead(t, s, "chat:a"), 5)
	run.Events[2].Scope, run.Events[2].Key = "u:ann", "k"
	mustStore(t, s, run)
	other := mustHead(t, s, "chat:b")
	before, events := all(t, s, "chat:a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = opened(t, open)
	after, again := all(t, s, "chat:a")
	if !reflect.DeepEqual(before, after) || !reflect.DeepEqual(events, again) {
		t.Fatalf("after reopening %+v, before %+v", after, before)
	}
	key := history.Key{Scope: "u:ann", Key: "k"}
	if h := mustHead(t, s, "chat:a", key); h.Epoch != run.Epoch || h.Offset != 5 || h.Repeats[key] != 3 {
		t.Fatalf("head after reopening: %+v", h)
	}
	if h := mustHead(t, s, "chat:b"); h.Epoch != other.Epoch {
		t.Fatalf("epoch %d after reopening, was %d", h.Epoch, other.Epoch)
	}
	if h := mustHead(t, s, "chat:new"); h.Epoch == run.Epoch || h.Epoch == other.Epoch {
		t.Fatalf("epoch %d was given out twice", h.Epoch)
	}
	mustStore(t, s, runAfter(mustHead(t, s, "chat:a"), 2))
	wantLeft(t, s, "chat:a", 1, 7)
}

func twoStores(t *testing.T, open Open) {
	stores := []history.Store{opened(t, open), opened(t, open)}
	believers(t, stores)
	creators(t, []history.Store{stores[0], stores[1], stores[1]})
	h := fill(t, stores[0], "chat:seen", 1)
	if got := mustHead(t, stores[1], "chat:seen"); !reflect.DeepEqual(got, h) {
		t.Fatalf("the other store reads %+v, want %+v", got, h)
	}
}

// twoOpens: routers that start at once over an empty database migrate it once.
func twoOpens(t *testing.T, open Open) {
	stores := make([]history.Store, 3)
	var group errgroup.Group
	for i := range stores {
		// Owns stores[i]; ends when it is open; waited for below.
		group.Go(func() (err error) {
			stores[i], err = open()
			return err
		})
	}
	err := group.Wait()
	for _, s := range stores {
		if s != nil {
			closeAfter(t, s)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	creators(t, stores)
}
