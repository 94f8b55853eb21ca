// Package history is the contract of Spillway's one durable thing: the events
// of every channel that has history, and one row per channel that fences its
// writers.
//
// The router calls a Store; the packages postgres, sqlite and memory implement
// it; historytest holds the conformance suite that all three pass. A Store is
// safe for concurrent use and starts no work of its own: whoever made it calls
// Trim, and Close ends it. Every call may block for as long as its context
// lets it and for no longer. Slices in arguments belong to the caller again
// when the call returns; slices in results belong to the caller.
//
// Shape: every call takes many channels, because one call a channel is what
// takes a database down when ten thousand clients return (33 us of database
// CPU for each single read, 10 us in batches of hundreds).
//
// Invariants (I1, I2): a run is stored whole or not at all; per channel and
// epoch the stored offsets are a suffix of 1..head without holes; the channel
// row outlives its events, and what comes after a row that is gone has a larger
// epoch than that ever had.
//
// Left out on purpose: ownership, numbering, batching windows and caches (the
// router's), and anything that needs more than the plain SQL protocol.
package history

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Event is one published event as it is stored.
type Event struct {
	Offset uint64 // 1.. within its epoch; <= 2^53-1
	TimeMS int64  // Unix milliseconds, the owner's clock when it numbered the event
	Data   []byte // compact JSON, or any bytes if Binary; read back it is never nil
	Binary bool
	From   string // publishing user; "" for a backend
	Meta   []byte // compact JSON object with string values, or nil
	Key    string // idempotency key; "" for none. Unique in (channel, KeyScope)
	Scope  string // who owns Key: "u:" + user, or "b" for backends
}

// Key names an idempotency key to look up.
type Key struct {
	Scope string
	Key   string
}

// Run is what an owner wants to append to one channel: consecutive offsets
// from Head+1. Epoch and Head are what the owner believes of the channel row;
// if the row says otherwise the run is Lost and nothing of it is stored.
type Run struct {
	Channel string
	Epoch   uint64
	Head    uint64
	Events  []Event // at least one; Events[i].Offset == Head+1+i; no key twice
}

// Outcome tells what became of a run.
type Outcome uint8

const (
	Unset  Outcome = iota // never returned
	Stored                // committed: every later reader sees all of it
	Lost                  // another writer moved the row: reload, number again
)

func (o Outcome) String() string {
	switch o {
	case Stored:
		return "stored"
	case Lost:
		return "lost"
	}
	return "unset"
}

// HeadQuery asks for the row of one channel and for the keys that a batch of
// publishes brings. A channel without a row gets one (insert if absent, with a
// new epoch from the store's sequence, so that two creators read one epoch).
type HeadQuery struct {
	Channel string
	Keys    []Key
}

// Head is the answer to a HeadQuery.
type Head struct {
	Channel string
	Epoch   uint64
	Offset  uint64         // the newest offset of the epoch; 0: none yet
	Repeats map[Key]uint64 // keys already stored -> offset of the first event with them; nil if none
}

// Range asks for stored events of one channel.
// Forward: offsets > After, oldest first. Reverse: offsets < Before (0: from the
// head), newest first. Epoch is not a condition: the page tells its own.
type Range struct {
	Channel  string
	After    uint64
	Before   uint64
	Reverse  bool
	Limit    int // most events, > 0
	MaxBytes int // stop before the sum of len(Data)+len(Meta) passes this, but return at least one event; 0: no bound
}

// Page answers a Range from one snapshot of the channel: head and events agree.
type Page struct {
	Channel string
	Exists  bool // false: no row; everything else is zero
	Epoch   uint64
	Head    uint64
	First   uint64 // oldest offset still stored; Head+1 if none is. First <= Head+1
	Events  []Event
	More    bool // events in the range were left out because of Limit or MaxBytes
}

// Retention bounds the history of one namespace. The namespace of "chat:room-7"
// is "chat", of "news" (no colon) it is "".
type Retention struct {
	Namespace string
	Size      int           // newest events kept per channel; 0: no bound
	TTL       time.Duration // events older than this go; 0: no bound
}

// Renewal asks for a new epoch of a channel, because some of its history is gone
// or may be: positions of the old epoch will not be recovered.
type Renewal struct {
	Channel string
	Epoch   uint64 // with Head: the row as it was read; if it says otherwise nothing is done
	Head    uint64
	New     uint64 // the new epoch, > Epoch; 0: the store numbers it
	Floor   uint64 // with New 0: the largest epoch that anybody has seen. The new one is larger
}

// RefusedError says that the database refused the content of a batch (a value
// it cannot hold, a constraint), not its circumstances. Nothing of the batch
// was stored. The caller halves the batch until the bad event fails alone.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return fmt.Sprintf("store refused the content: %v", e.Err) }
func (e *RefusedError) Unwrap() error { return e.Err }

// ErrClosed is returned by every call after Close.
var ErrClosed = errors.New("history store is closed")

// Store keeps events. See the package comment for who calls what.
type Store interface {
	// Append stores runs of distinct channels in one transaction. The outcomes
	// are in the order of the runs, each independent of the others. An error
	// means that nothing is known: the batch may have been committed, unless it
	// is a *RefusedError. The caller then reloads the heads of all its channels.
	Append(ctx context.Context, runs []Run) ([]Outcome, error)

	// Heads loads (and if need be creates) the rows of distinct channels and
	// looks up keys, in the order of the queries, reading from the primary.
	Heads(ctx context.Context, queries []HeadQuery) ([]Head, error)

	// Renew begins new epochs for distinct channels. What is stored stays and is
	// read in the new epoch: the head does not move, offsets go on behind it,
	// keys are known as before. An epoch numbered by the store is the next of its
	// sequence, which goes on above Floor: after a restore it may be behind what
	// it has given. The rows come back as they are afterwards, in the order of
	// the renewals, whoever moved them; a channel without a row has Epoch 0.
	Renew(ctx context.Context, renewals []Renewal) ([]Head, error)

	// Read answers many ranges with few statements, in their order. It creates
	// no rows. The same channel may be asked for more than once.
	Read(ctx context.Context, ranges []Range) ([]Page, error)

	// Trim deletes events past the retention, always a prefix of a channel, in
	// short transactions; it never touches a head, and it forgets keys first
	// stored longer ago than keyWindow (0: never). Ages count from TimeMS.
	// At most limit rows go in one call; it returns how many went, events and
	// keys together; fewer than limit means that it is done.
	Trim(ctx context.Context, rules []Retention, keyWindow time.Duration, limit int) (int, error)

	// Forget removes the rows of channels in which nothing is stored, neither
	// events nor keys, and that nobody has made, emptied, renewed or kept (Keep)
	// for idle, in short transactions. What its keys alone keep counts as kept when
	// it is looked at. Whoever still believes in such a row loses
	// its next run. The sequence goes on above every epoch that went, so a channel
	// that comes back has a larger one. At most limit rows go in one call; it
	// returns how many went; fewer than limit means that it is done.
	Forget(ctx context.Context, idle time.Duration, limit int) (int, error)

	// Keep says that distinct channels are in use though nothing is published on
	// them. It makes no rows, waits for no writer, and may pass over a channel that
	// was kept within KeepSlack or is being written to.
	Keep(ctx context.Context, channels []string) error

	// Close ends the store once the calls in it have returned. Idempotent.
	Close() error
}
