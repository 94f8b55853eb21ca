package channel

import "github.com/spillway-io/spillway/router/namespace"

// rules is what differs between the durabilities of a namespace. The way of a
// publication is the same for all of them. Its publisher is answered right after the
// event was sent: a router that dies in between leaves less to repair.
type rules struct {
	numberedBy numbering // who gives epoch and offsets, and remembers idempotency keys
	sent       moment    // when an event goes on the bus, and its publisher is answered
}

// numbering is where the truth about a channel is kept.
type numbering uint8

const (
	byRow    numbering = iota // the channel's row in the store, which also fences
	byMemory                  // the memory of the one router that holds the channel
)

// moment is a point on the way of a publication.
type moment uint8

const (
	onceStored   moment = iota // the store has committed its run
	onceNumbered               // it has an offset
)

var durabilities = [...]rules{
	namespace.Committed: {numberedBy: byRow, sent: onceStored},
	namespace.None:      {numberedBy: byMemory, sent: onceNumbered},
}
