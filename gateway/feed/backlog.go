package feed

import "sync"

// messageBytes is what a waiting message costs beside its bytes.
const messageBytes = 64

// backlog is what the bus brought and the shard has not taken yet. The mover puts
// and never waits, so that nothing piles up behind it where only messages are
// counted; what goes over the bound is let go and counted, and makes every channel
// of the shard doubtful.
type backlog struct {
	// immutable
	wake chan struct{} // capacity 1: something waits
	most int           // bytes

	mu      sync.Mutex // guards all below; never held across a call
	queue   [][]byte
	bytes   int    // of queue; at most most, or one message alone
	dropped uint64 // messages
}

func newBacklog(most int) backlog { return backlog{wake: make(chan struct{}, 1), most: most} }

// put takes messages in order, as far as there is room.
func (b *backlog) put(messages [][]byte) {
	b.mu.Lock()
	for _, m := range messages {
		if size := len(m) + messageBytes; b.bytes == 0 || b.bytes+size <= b.most {
			b.queue = append(b.queue, m)
			b.bytes += size
		} else {
			b.dropped++
		}
	}
	waits := len(b.queue) > 0
	b.mu.Unlock()
	if waits {
		b.signal()
	}
}

func (b *backlog) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take moves the oldest messages to into, as many as it has room for.
func (b *backlog) take(into [][]byte) [][]byte {
	b.mu.Lock()
	n := min(len(b.queue), cap(into)-len(into))
	for _, m := range b.queue[:n] {
		b.bytes -= len(m) + messageBytes
	}
	into = append(into, b.queue[:n]...)
	clear(b.queue[:n])
	left := len(b.queue) - n
	switch {
	case left > 0:
		b.queue = b.queue[n:]
	case cap(b.queue) > 4*batch:
		b.queue = nil // after a rush
	default:
		b.queue = b.queue[:0]
	}
	b.mu.Unlock()
	if left > 0 {
		b.signal()
	}
	return into
}

// state tells the bytes that wait and the messages that were dropped.
func (b *backlog) state() (bytes int, dropped uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes, b.dropped
}
