package channel

import "fmt"

// Inside is what tests of this package see of a channel from outside of it.
type Inside struct {
	Known       bool
	At, Shown   Position
	First       uint64 // of the tail; 0: it is empty
	Tail        int
	Own         string
	Pending     int
	Live        int // of Pending, those whose callers wait
	Waiting     int
	Unknown     int
	Keys        int
	Running     bool
	Moving      bool
	Offered     bool
	Held        bool
	HeldUntil   int64
	LateUntil   int64
	HandedFirst standingOf
}

type standingOf struct {
	At    Position
	Moves uint64
}

// Look is the inside of a channel.
func Look(c *Channel) Inside {
	in := Inside{
		Known: c.known, At: Position{c.epoch, c.head}, Shown: c.shown, Tail: len(c.tail.events), Own: c.own.state.String(), Pending: len(c.pending),
		Waiting: len(c.waiting), Unknown: len(c.unknown), Running: c.running, Moving: c.moving != nil, Offered: c.offered, Held: !c.held.IsZero(),
		HeldUntil: c.held.UnixNano(), LateUntil: c.late.UnixNano(), HandedFirst: standingOf{c.own.newest.Position, c.own.newest.moves},
	}
	if in.Tail > 0 {
		in.First = c.tail.first
	}
	if c.keys != nil {
		in.Keys = len(c.keys.order)
	}
	for _, p := range c.pending {
		if p.Stage() == Queued {
			in.Live++
		}
	}
	return in
}

// Check holds a channel against the invariants of its package.
func Check(c *Channel) error {
	bytes, pending := int64(0), int64(0)
	for i, e := range c.tail.events {
		if e.Offset != c.tail.first+uint64(i) {
			return fmt.Errorf("the tail has a hole before %d", e.Offset)
		}
		bytes += EventSize(e)
	}
	for _, p := range c.pending {
		pending += p.Size()
	}
	switch at := (Position{c.epoch, c.head}); {
	case len(c.tail.events) > 0 && (!c.known || c.tail.first+uint64(len(c.tail.events)) != c.head+1):
		return fmt.Errorf("a tail of %d from %d does not end at %v", len(c.tail.events), c.tail.first, at)
	case bytes != c.tail.bytes || pending != c.pendingBytes:
		return fmt.Errorf("the tail has %d bytes, counted %d; the queue %d, counted %d", bytes, c.tail.bytes, pending, c.pendingBytes)
	case c.known && at.Above(c.shown):
		return fmt.Errorf("%v is above what was shown, %v", at, c.shown)
	case !c.known && (c.epoch != 0 || c.head != 0):
		return fmt.Errorf("%v is not known", at)
	case c.running && c.moving != nil:
		return fmt.Errorf("a run is with the writer while the channel is moving")
	case len(c.waiting) > 0 && c.own.state != ownAwaiting:
		return fmt.Errorf("%d questions wait, and the channel is %v", len(c.waiting), c.own.state)
	case len(c.unknown) > MaxUnknown:
		return fmt.Errorf("%d unknown runs", len(c.unknown))
	case c.foreign && (c.known || len(c.pending) > 0 || len(c.waiting) > 0):
		return fmt.Errorf("something is kept of a foreign channel")
	}
	return nil
}

// Idle says that nothing but the list of ready channels keeps publications from being
// taken: no message and no tick is awaited.
func Idle(c *Channel) bool {
	return !c.running && c.moving == nil && c.held.IsZero() && c.own.state != ownAwaiting
}
