// Package inbox hands things to the goroutine that turns a poller. The edge's loops and
// its door own one each; any goroutine posts, and only the owner takes. It starts no
// goroutine, holds its lock for an append or a swap, and leaves it to those who post to
// bound what may wait in it.
package inbox

import "sync"

// Inbox is first in, first out. Wake must be set before its first use.
type Inbox[T any] struct {
	Wake func() // makes the owner look; cheap, from any goroutine

	mu    sync.Mutex // guards all below; never held across a call
	queue []T
	spare []T // the queue before the one in use
}

// Post queues v and never blocks.
func (b *Inbox[T]) Post(v T) {
	b.mu.Lock()
	b.queue = append(b.queue, v)
	first := len(b.queue) == 1
	b.mu.Unlock()
	if first {
		b.Wake()
	}
}

// Take empties the inbox. The slice is the caller's until the next Take.
func (b *Inbox[T]) Take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.queue
	clear(b.spare[:cap(b.spare)])
	b.queue, b.spare = b.spare[:0], taken
	return taken
}

// Len is how many wait.
func (b *Inbox[T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}
