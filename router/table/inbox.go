package table

import (
	"sync"

	"github.com/spillway-io/spillway/router/channel"
)

// kind is what a message to a shard is about.
type kind uint8

const (
	cmdPublish kind = iota // pub
	cmdAsk                 // x: *channel.Question
	cmdPage                // x: *channel.PageQuery
	cmdRead                // x: *channel.ReadAnswer
	cmdWritten             // x: []*channel.Run
	cmdCall                // x: func(), called by the shard
)

// command is a message to a shard.
type command struct {
	kind kind
	pub  *channel.Publication
	x    any
}

// inbox holds messages until their shard takes them. It is bounded by its senders: the
// queue of publications, the unanswered asks of each edge, the reads that wait.
type inbox struct {
	wake chan struct{} // capacity 1

	mu    sync.Mutex // guards below
	queue []command
}

func newInbox() inbox { return inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) post(c command) {
	b.mu.Lock()
	first := len(b.queue) == 0
	b.queue = append(b.queue, c)
	b.mu.Unlock()
	if first {
		signal(b.wake)
	}
}

// inboxSpare is how many messages an empty inbox keeps room for.
const inboxSpare = 16 << 10

// take returns all that waits, in order; spare is room for what comes next.
func (b *inbox) take(spare []command) []command {
	if cap(spare) > inboxSpare {
		spare = nil // after a rush
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	queue := b.queue
	b.queue = spare[:0]
	return queue
}
