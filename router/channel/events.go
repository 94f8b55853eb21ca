package channel

import (
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/history"
)

// BusEvents are events of the store as they go on the bus.
func BusEvents(events []history.Event) []*gatewayv1.BusEvent {
	var slab eventSlab
	out := make([]*gatewayv1.BusEvent, len(events))
	for i := range events {
		out[i] = slab.next(len(events) - i)
		fillEvent(out[i], &events[i])
	}
	return out
}

// slabEvents is how many events share an allocation. As long as one of them is in a
// tail, the others are in memory too, with all that they carry, and not counted.
const slabEvents = 16

// eventSlab hands out the events of a run.
type eventSlab []gatewayv1.BusEvent

// next is one more of at most so many.
func (b *eventSlab) next(left int) *gatewayv1.BusEvent {
	if len(*b) == 0 {
		*b = make([]gatewayv1.BusEvent, min(left, slabEvents))
	}
	e := &(*b)[0]
	*b = (*b)[1:]
	return e
}

func fillEvent(b *gatewayv1.BusEvent, e *history.Event) {
	b.Offset, b.TimeMs, b.Data, b.Binary, b.From, b.Meta = e.Offset, uint64(max(0, e.TimeMS)), e.Data, e.Binary, e.From, e.Meta
}
