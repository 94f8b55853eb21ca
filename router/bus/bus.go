// Package bus puts envelopes on NATS: one subject for each channel, at most once.
//
// The router calls Publish from many goroutines; it encodes and queues, and never
// blocks: a NATS server that stands still would otherwise stop the commits. Run
// is the one goroutine that hands the queue to nats.go, whose own buffer holds what
// comes while it reconnects. The connection is the caller's.
//
// Limits: the queue is bounded in bytes; past it, and past nats.go's reconnect
// buffer, envelopes are dropped and counted, and edges repair the gap. An
// envelope above the server's payload limit is split; an event that passes it
// alone goes as a head without the event, which edges then fetch.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/proto/schema"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Conn is what is used of a *nats.Conn. Publish keeps nothing of data.
type Conn interface {
	Publish(subject string, data []byte) error
	MaxPayload() int64
	FlushWithContext(context.Context) error
}

// Config of a Bus.
type Config struct {
	Prefix     string                `rule:"not empty"`                // of all subjects
	QueueBytes int                   `default:"16 MiB" rule:"above 0"` // most that waits for nats.go
	Log        *slog.Logger          // nil: silent
	Registry   prometheus.Registerer // nil: no metrics
}

// Default works once Prefix is set.
func Default() Config { return schema.Default[Config]() }

// Validate reports all problems at once.
func (c Config) Validate() error { return schema.Validate(&c) }

// minPayload is taken for a limit that the connection does not know yet.
const minPayload = 1 << 20

// chunkBytes is how much is encoded into one piece of memory, and spareMessages how
// many messages a queue keeps room for: what a rush needed beyond is let go.
const (
	chunkBytes    = 256 << 10
	spareMessages = 4096
)

// overhead is kept free in a message for the envelope around its events.
const overhead = 1024

// Bus implements router.Bus.
type Bus struct {
	// immutable after New
	cfg     Config
	conn    Conn
	metrics *metrics
	log     *slog.Logger
	wake    chan struct{} // capacity 1

	// owned by Run: what the last batch leaves for the next but one
	spare      []message
	spareChunk []byte

	mu    sync.Mutex // guards below
	queue []message
	chunk []byte // the newest of queue are encoded in it
	bytes int
}

type message struct {
	subject string
	data    []byte
}

var _ Conn = (*nats.Conn)(nil)

// New makes a Bus over a connection; Run makes it work.
func New(cfg Config, conn Conn) (*Bus, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("router bus: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{cfg: cfg, conn: conn, log: cfg.Log, wake: make(chan struct{}, 1)}
	b.metrics = newMetrics(cfg.Registry, b.queued)
	return b, nil
}

func (b *Bus) queued() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return float64(b.bytes)
}

// Publish implements router.Bus.
func (b *Bus) Publish(e *gatewayv1.Envelope) {
	limit := int(b.conn.MaxPayload())
	if limit <= 0 {
		limit = minPayload
	}
	subject := wire.Subject(b.cfg.Prefix, e.Channel)
	size := proto.Size(e)
	if size <= limit {
		b.put(subject, e, size)
		return
	}
	for _, part := range split(e, limit-overhead) {
		b.put(subject, part, proto.Size(part))
	}
	b.metrics.splits.Inc()
}

// split cuts an envelope into parts whose events have at most limit bytes. The
// events keep their order; what does not fit alone is left out of its part.
func split(e *gatewayv1.Envelope, limit int) []*gatewayv1.Envelope {
	var parts []*gatewayv1.Envelope
	part := func(head uint64, events []*gatewayv1.BusEvent) {
		parts = append(parts, &gatewayv1.Envelope{Channel: e.Channel, Epoch: e.Epoch, Head: head, Events: events, Router: e.Router, Base: e.Base})
	}
	from, size := 0, 0
	for i, event := range e.Events {
		n := proto.Size(event) + 8 // tag and length
		if i > from && size+n > limit {
			part(e.Events[i-1].Offset, e.Events[from:i])
			from, size = i, 0
		}
		if n > limit {
			part(event.Offset, nil)
			from = i + 1
			continue
		}
		size += n
	}
	if from < len(e.Events) {
		part(e.Head, e.Events[from:])
	}
	return parts
}

// put encodes e, whose size was just taken, behind what waits.
func (b *Bus) put(subject string, e *gatewayv1.Envelope, size int) {
	b.mu.Lock()
	full := b.bytes+size > b.cfg.QueueBytes
	var err error
	if !full {
		err = b.appendLocked(subject, e, size)
	}
	b.mu.Unlock()
	switch {
	case full:
		b.metrics.drops.queue.Inc()
		return
	case err != nil:
		b.metrics.drops.invalid.Inc()
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *Bus) appendLocked(subject string, e *gatewayv1.Envelope, size int) error {
	if cap(b.chunk)-len(b.chunk) < size {
		b.chunk = make([]byte, 0, max(chunkBytes, size)) // the other lives on in its messages
	}
	from := len(b.chunk)
	chunk, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b.chunk, e)
	if err != nil {
		return err
	}
	b.chunk = chunk
	data := chunk[from:len(chunk):len(chunk)]
	b.queue = append(b.queue, message{subject: subject, data: data})
	b.bytes += len(data)
	return nil
}

// Run hands the queue to the connection until ctx ends, then flushes what is left
// within a second.
func (b *Bus) Run(ctx context.Context) error {
	for {
		select {
		case <-b.wake:
			b.drain()
		case <-ctx.Done():
			b.drain()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = b.conn.FlushWithContext(last) // a bus that is away loses it; edges repair
			return nil
		}
	}
}

// drain gives everything that waits to nats.go. The bytes count until then.
func (b *Bus) drain() {
	for {
		b.mu.Lock()
		batch, chunk := b.queue, b.chunk
		b.queue, b.chunk = b.spare, b.spareChunk
		b.mu.Unlock()
		if len(batch) == 0 {
			b.spare, b.spareChunk = batch, chunk
			return
		}
		size := 0
		for i := range batch {
			b.send(&batch[i])
			size += len(batch[i].data)
		}
		b.mu.Lock()
		b.bytes -= size
		b.mu.Unlock()
		b.keep(batch, chunk)
	}
}

// keep leaves the memory of a batch that was sent: the connection has copied it.
func (b *Bus) keep(batch []message, chunk []byte) {
	clear(batch)
	b.spare, b.spareChunk = batch[:0], chunk[:0]
	if cap(batch) > spareMessages {
		b.spare = nil
	}
	if cap(chunk) > chunkBytes {
		b.spareChunk = nil
	}
}

func (b *Bus) send(m *message) {
	switch err := b.conn.Publish(m.subject, m.data); {
	case err == nil:
		b.metrics.sent.Inc()
		b.metrics.sentBytes.Add(float64(len(m.data)))
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		b.metrics.drops.reconnect.Inc()
	default:
		b.metrics.drops.failed.Inc()
		b.log.Debug("bus publish failed", "error", err)
	}
}
