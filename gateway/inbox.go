package gateway

import "sync"

// inbox hands things to the goroutine of a poller, first in first out. Posting
// never blocks; what may wait in it is bounded by its posters.
type inbox[T any] struct {
	wake func() // cheap, from any goroutine

	mu    sync.Mutex // guards all below; never held across a call
	queue []T
	spare []T // the queue before the one in use
}

// post queues v.
func (b *inbox[T]) post(v T) {
	b.mu.Lock()
	b.queue = append(b.queue, v)
	first := len(b.queue) == 1
	b.mu.Unlock()
	if first {
		b.wake()
	}
}

// take empties the inbox. The slice is the caller's until the next take.
func (b *inbox[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.queue
	clear(b.spare[:cap(b.spare)])
	b.queue, b.spare = b.spare[:0], taken
	return taken
}
