package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
	"github.com/spillway-io/spillway/proto/wire"
)

func flush(b *Bus, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return b.Flush(ctx)
}

// A flush says yes only if the server has all that was published before it: not
// while the server is away, and not for what was on the wire when it ended.
func TestFlushMeansThatTheServerHasIt(t *testing.T) {
	s := server(t)
	b := run(t, Default(), connect(t, s.URL()))
	sub, err := connect(t, s.URL()).SubscribeSync(wire.Subject("spillway", "a"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		b.Publish(envelope("a", i+1, 10))
		if err := flush(b, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := sub.NextMsg(10 * time.Second); i > 0 && err != nil { // the first may come before the interest
			t.Fatalf("flushed, but %d did not arrive: %v", i+1, err)
		}
	}
	port := s.Port()
	s.Close()
	b.Publish(envelope("a", 4, 10))
	if err := flush(b, 200*time.Millisecond); err == nil {
		t.Error("a flush without a server")
	}
	again, err := natsserver.Start(context.Background(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	refused := 0
	eventually(t, "flushes are answered again", func() bool {
		err := flush(b, time.Second)
		if errors.Is(err, errDropped) {
			refused++
		}
		return err == nil
	})
	if refused != 1 {
		t.Errorf("%d flushes told that the connection had ended, want 1", refused)
	}
}

// What the full queue let go makes one flush fail.
func TestFlushTellsOfWhatWasDropped(t *testing.T) {
	s := server(t)
	cfg := Default()
	cfg.QueueBytes = 200
	conn := connect(t, s.URL(), nats.Name("dropping"))
	b, err := New(cfg, conn) // nothing takes from the queue yet
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		b.Publish(envelope("a", i+1, 100))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }() // ended and waited for below
	if err := flush(b, 10*time.Second); !errors.Is(err, errDropped) {
		t.Errorf("flush after drops: %v", err)
	}
	b.Publish(envelope("a", 6, 10))
	if err := flush(b, 10*time.Second); err != nil {
		t.Errorf("the next flush: %v", err)
	}
	cancel()
	<-ended
}
