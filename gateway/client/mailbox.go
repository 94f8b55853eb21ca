package client

import (
	"sync"

	"github.com/spillway-io/spillway/gateway/client/machine"
)

// mailboxBytes may wait for callbacks; a reader that brings more waits (nothing is
// dropped), with one message in its hands.
const mailboxBytes = 4 << 20

// mailbox holds what the application is to be told, in order. Pushing never
// blocks; readers ask for room before they read on, and so bound it.
type mailbox struct {
	mu      sync.Mutex // guards all below
	items   []machine.Action
	bytes   int
	running bool          // somebody pops
	room    chan struct{} // closed when there is room; nil: nobody waits
}

// push reports true if the caller has to start a goroutine that pops.
func (b *mailbox) push(a machine.Action) (start bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items = append(b.items, a)
	b.bytes += sizeOf(a)
	start = !b.running
	b.running = true
	return start
}

// pop takes the oldest; false: there is none, and the popping goroutine ends.
func (b *mailbox) pop() (machine.Action, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) == 0 {
		b.items, b.running = nil, false
		return nil, false
	}
	a := b.items[0]
	b.items[0] = nil
	b.items = b.items[1:]
	b.bytes -= sizeOf(a)
	if b.bytes < mailboxBytes && b.room != nil {
		close(b.room)
		b.room = nil
	}
	return a, true
}

// full gives something to wait for, or nil if there is room.
func (b *mailbox) full() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes < mailboxBytes {
		return nil
	}
	if b.room == nil {
		b.room = make(chan struct{})
	}
	return b.room
}

func sizeOf(a machine.Action) int {
	size := 256 // the structs, roughly
	if e, ok := a.(machine.TellEvent); ok {
		size += len(e.Data)
		for k, v := range e.Meta {
			size += len(k) + len(v) + 64
		}
	}
	return size
}
