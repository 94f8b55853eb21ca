package channel

import (
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// eventBytes is what an event costs in memory beside its data, meta and sender.
const eventBytes = 160

// tail is the newest events of a channel, without holes, up to its head. Its
// events are shared with answers and envelopes and never change.
type tail struct {
	first  uint64 // offset of events[0]
	events []*gatewayv1.BusEvent
	bytes  int64
}

// tailBounds says what may be let go when a tail grows.
type tailBounds struct {
	before uint64 // events of this time, Unix ms, and older may go
	events int    // but not the newest n
	bytes  int64  // past this the oldest go whatever they are; 0: no bound
}

// EventSize is what an event costs in memory.
func EventSize(e *gatewayv1.BusEvent) int64 {
	return eventBytes + int64(len(e.Data)+len(e.Meta)+len(e.From))
}

func (t *tail) append(events []*gatewayv1.BusEvent, keep tailBounds) {
	for _, e := range events {
		t.bytes += EventSize(e)
	}
	t.events = append(t.events, events...)
	drop := 0
	for drop < len(t.events) {
		e := t.events[drop]
		old := len(t.events)-drop > keep.events && e.TimeMs <= keep.before
		if !old && (keep.bytes == 0 || t.bytes <= keep.bytes) {
			break
		}
		t.bytes -= EventSize(e)
		t.events[drop] = nil // the array outlives the slice
		drop++
	}
	t.events = t.events[drop:]
	t.first += uint64(drop)
}

// covers says that every event after offset is here, given that the tail is
// trusted and ends at head.
func (t *tail) covers(offset, head uint64) bool {
	if offset == head {
		return true
	}
	return len(t.events) > 0 && offset+1 >= t.first && offset < head
}

// firstOr is the offset of the first event, or none.
func (t *tail) firstOr(none uint64) uint64 {
	if len(t.events) == 0 {
		return none
	}
	return t.first
}

// after returns the events after offset, as many as fit; a caller's own slice. If the
// tail begins later, it is from there.
func (t *tail) after(offset uint64, limit, maxBytes int) (events []*gatewayv1.BusEvent, more bool) {
	if len(t.events) == 0 || offset >= t.first+uint64(len(t.events)) {
		return nil, false
	}
	offset = max(offset+1, t.first) - 1
	return cut(t.events[offset+1-t.first:], limit, maxBytes)
}

// cut takes events from the front until one more would pass a bound, but one.
func cut(events []*gatewayv1.BusEvent, limit, maxBytes int) ([]*gatewayv1.BusEvent, bool) {
	n, size := 0, 0
	for n < len(events) && n < limit {
		size += len(events[n].Data) + len(events[n].Meta)
		if n > 0 && maxBytes > 0 && size > maxBytes {
			break
		}
		n++
	}
	return append([]*gatewayv1.BusEvent(nil), events[:n]...), n < len(events)
}

// newest returns up to n of the newest events, oldest first.
func (t *tail) newest(n, maxBytes int) []*gatewayv1.BusEvent {
	from, size := len(t.events), 0
	for from > 0 && len(t.events)-from < n {
		e := t.events[from-1]
		size += len(e.Data) + len(e.Meta)
		if from < len(t.events) && maxBytes > 0 && size > maxBytes {
			break
		}
		from--
	}
	return append([]*gatewayv1.BusEvent(nil), t.events[from:]...)
}
