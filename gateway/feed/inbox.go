package feed

import (
	"sync"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

type commandKind uint8

const (
	cmdPull commandKind = iota
	cmdCancel
	cmdLeave
	cmdAnswer
)

// command is what a loop or a router wants of a shard.
type command struct {
	kind   commandKind
	pull   Pull // of the others only Sink, Conn, Sub, Channel
	answer *gatewayv1.Answer
}

// inbox hands commands to a shard, first in first out. Posting never blocks; what
// waits is bounded by its posters: a pull for each subscription, an answer for
// each ask.
type inbox struct {
	wake chan struct{} // capacity 1

	mu    sync.Mutex // guards queue; never held across a call
	queue []command
}

func newInbox() inbox { return inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) post(c command) {
	b.mu.Lock()
	b.queue = append(b.queue, c)
	first := len(b.queue) == 1
	b.mu.Unlock()
	if first {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// take empties the inbox; spare becomes the next queue.
func (b *inbox) take(spare []command) []command {
	clear(spare)
	if cap(spare) > 4096 {
		spare = nil // after a rush
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	queue := b.queue
	b.queue = spare[:0]
	return queue
}
