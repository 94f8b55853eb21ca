package admission

import (
	"net/netip"
	"time"
)

// maxExpected bounds the addresses that are remembered; past it newcomers wait like
// all others.
const maxExpected = 100_000

// Handshakes is the gate before TLS, where the edge ends it: a handshake costs twelve
// times all that comes after it, and nobody can be told anything before. So there is a
// budget of them; who comes from an address that a confirmed grant named goes first,
// the rest waits unread, first come first served, and is reset when its time is up.
// Same rules as Gate: pure, one caller at a time.
type Handshakes struct {
	tokens   bucket
	wait     time.Duration
	room     int
	waiting  list
	byID     map[uint64]*waiter
	expected map[netip.Addr]time.Time // until when
}

// NewHandshakes makes a gate for perSecond handshakes, at most a tenth of a second's
// worth at once (1 at least), with room for that many waiters.
func NewHandshakes(perSecond float64, wait time.Duration, room int, now time.Time) *Handshakes {
	return &Handshakes{
		tokens: newBucket(perSecond, max(perSecond/10, 1), now), wait: wait, room: room,
		byID: make(map[uint64]*waiter), expected: make(map[netip.Addr]time.Time),
	}
}

// Set changes what NewHandshakes was told; who waits keeps its place and its time.
func (h *Handshakes) Set(perSecond float64, wait time.Duration, room int, now time.Time) {
	h.tokens.set(perSecond, max(perSecond/10, 1), now)
	h.wait, h.room = wait, room
}

// Expect lets arrivals from these addresses pass first until then.
func (h *Handshakes) Expect(sources []netip.Addr, until, now time.Time) {
	if len(h.expected)+len(sources) > maxExpected {
		for a, over := range h.expected {
			if now.After(over) {
				delete(h.expected, a)
			}
		}
	}
	for _, a := range sources {
		if len(h.expected) < maxExpected {
			h.expected[a] = latest(h.expected[a], until)
		}
	}
}

// Arrive decides about a socket that was just accepted.
func (h *Handshakes) Arrive(id uint64, source netip.Addr, now time.Time) Verdict {
	switch {
	case h.tokens.ready(now) && (h.waiting.n == 0 || h.isExpected(source, now)):
		h.tokens.take()
		return Admit
	case h.waiting.n >= h.room || h.wait <= 0:
		return Refuse
	}
	w := &waiter{arrival: Arrival{ID: id}, deadline: now.Add(h.wait)}
	h.byID[id] = w
	if h.isExpected(source, now) {
		h.waiting.pushFirst(w)
	} else {
		h.waiting.push(w)
	}
	return Wait
}

func (h *Handshakes) isExpected(source netip.Addr, now time.Time) bool {
	until, ok := h.expected[source]
	return ok && now.Before(until)
}

// Serve calls begin for waiters whose turn has come, and reset for those whose time
// is up.
func (h *Handshakes) Serve(now time.Time, begin, reset func(id uint64)) {
	for w := h.waiting.first; w != nil; w = h.waiting.first {
		switch {
		case !now.Before(w.deadline):
			h.Gone(w.arrival.ID)
			reset(w.arrival.ID)
		case h.tokens.ready(now):
			h.tokens.take()
			h.Gone(w.arrival.ID)
			begin(w.arrival.ID)
		default:
			h.expire(now, reset)
			return
		}
	}
}

// expire resets those at the end of their time who stand behind expected ones.
func (h *Handshakes) expire(now time.Time, reset func(id uint64)) {
	for w := h.waiting.first; w != nil; {
		next := w.next
		if !now.Before(w.deadline) {
			h.Gone(w.arrival.ID)
			reset(w.arrival.ID)
		}
		w = next
	}
}

// Gone takes a waiter out that hung up.
func (h *Handshakes) Gone(id uint64) {
	if w := h.byID[id]; w != nil {
		delete(h.byID, id)
		h.waiting.remove(w)
	}
}

// Waiting is how many there are.
func (h *Handshakes) Waiting() int { return h.waiting.n }

// Next is how long Serve has nothing to do.
func (h *Handshakes) Next(now time.Time) time.Duration {
	if h.waiting.n == 0 {
		return time.Hour
	}
	return max(min(h.tokens.until(now), h.waiting.last.deadline.Sub(now)), 0)
}
