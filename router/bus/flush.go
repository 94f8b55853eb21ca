package bus

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/spillway-io/spillway/router"
)

var _ router.Flusher = (*Bus)(nil)

var errDropped = errors.New("something that was published did not reach the bus")

// Flush implements router.Flusher: it waits until all that was published before has
// been handed to the connection, and the server has answered a ping that came after
// it. One caller at a time; what was dropped, and a connection that ended, since its
// last call is an error once. It needs Run.
func (b *Bus) Flush(ctx context.Context) error {
	handed := make(chan struct{})
	b.mu.Lock()
	b.queue = append(b.queue, message{handed: handed})
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	select {
	case <-handed:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := b.conn.FlushWithContext(ctx); err != nil {
		return err
	}
	// What was on the wire when a connection ended is gone, and the server that
	// answers now may be another.
	n := b.dropped.Load()
	if c, ok := b.conn.(interface{ Stats() nats.Statistics }); ok {
		n += c.Stats().Reconnects
	}
	if n != b.told.Swap(n) {
		return errDropped
	}
	return nil
}

// losses counts what never reached the connection, for Flush.
type losses struct {
	dropped atomic.Uint64
	told    atomic.Uint64 // of those, what the last Flush knew
}
