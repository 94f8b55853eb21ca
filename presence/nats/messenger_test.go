package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
)

// startMessenger runs a Messenger for the length of a test.
func startMessenger(t *testing.T, server *natsserver.Server) *Messenger {
	t.Helper()
	messenger := NewMessenger(connect(t, server), "test", nil)
	background(t, messenger.Run)
	return messenger
}

// background runs f until the test ends, and waits for it.
func background(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }() // ended and waited for by the cleanup
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func startServer(t *testing.T) *natsserver.Server {
	t.Helper()
	server, err := natsserver.Start(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func TestAQuestionReachesOneMemberAndComesBack(t *testing.T) {
	server := startServer(t)
	asker := startMessenger(t, server)
	for _, name := range []string{"edge 1", "edge.1", "édge*>"} {
		member := startMessenger(t, server)
		background(t, func(ctx context.Context) error {
			return member.Serve(ctx, name, func(q []byte) []byte { return fmt.Appendf(nil, "%s heard %s", name, q) })
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for {
			answer, err := asker.Request(ctx, name, []byte("hello"))
			if errors.Is(err, ErrNobody) {
				continue // it has not subscribed yet
			}
			if err != nil || string(answer) != name+" heard hello" {
				t.Fatalf("answer %q, %v", answer, err)
			}
			break
		}
	}
}

func TestAskingNobodyFailsAtOnce(t *testing.T) {
	messenger := startMessenger(t, startServer(t))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := messenger.Request(ctx, "gone", nil); !errors.Is(err, ErrNobody) {
		t.Fatalf("got %v", err)
	}
}

func TestASilentMemberCostsNoMoreThanTheDeadline(t *testing.T) {
	server := startServer(t)
	messenger := startMessenger(t, server)
	asked := make(chan struct{}, 1)
	background(t, func(ctx context.Context) error {
		return messenger.Serve(ctx, "mute", func([]byte) []byte {
			select {
			case asked <- struct{}{}:
			default:
			}
			return nil
		})
	})
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := messenger.Request(ctx, "mute", nil)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if !errors.Is(err, ErrNobody) {
			t.Fatalf("got %v", err)
		}
	}
	<-asked
	messenger.mu.Lock()
	defer messenger.mu.Unlock()
	if len(messenger.asked) != 0 {
		t.Fatalf("%d questions are still remembered", len(messenger.asked))
	}
}

func TestAWordReachesAllWhoHear(t *testing.T) {
	server := startServer(t)
	var mu sync.Mutex
	heard := make(map[int]bool)
	for i := range 3 {
		ear := startMessenger(t, server)
		background(t, func(ctx context.Context) error {
			return ear.Listen(ctx, "news", func(m []byte) {
				mu.Lock()
				defer mu.Unlock()
				heard[i] = string(m) == "word"
			})
		})
	}
	speaker := startMessenger(t, server)
	deadline := time.Now().Add(10 * time.Second)
	for {
		if err := speaker.Broadcast("news", []byte("word")); err != nil && !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		mu.Lock()
		n := len(heard)
		mu.Unlock()
		if n == 3 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of 3 heard it", n)
		}
	}
}

func TestNothingWaitsForABusThatIsAway(t *testing.T) {
	server := startServer(t)
	messenger := startMessenger(t, server)
	server.Close()
	deadline := time.Now().Add(10 * time.Second)
	for messenger.conn.IsConnected() {
		if time.Now().After(deadline) {
			t.Fatal("still connected")
		}
	}
	if err := messenger.Broadcast("news", nil); !errors.Is(err, ErrAway) {
		t.Fatalf("say: %v", err)
	}
	if _, err := messenger.Request(t.Context(), "edge", nil); !errors.Is(err, ErrAway) {
		t.Fatalf("ask: %v", err)
	}
}
