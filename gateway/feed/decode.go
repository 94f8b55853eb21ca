package feed

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// errEnvelope says that bytes of the bus are not an Envelope.
var errEnvelope = errors.New("not an envelope")

// envelope is a gatewayv1.Envelope decoded without allocation: it and its events
// are reused, and their bytes are those of the message. What nobody here reads
// (the sending router, unknown fields) is passed over.
type envelope struct {
	channel []byte
	epoch   uint64
	head    uint64
	base    uint64
	events  []*gatewayv1.BusEvent
}

// decode reads b, which must not change while e is used.
func (e *envelope) decode(b []byte) error {
	e.channel, e.epoch, e.head, e.base, e.events = nil, 0, 0, 0, e.events[:0]
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errEnvelope
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.BytesType:
			e.channel, n = protowire.ConsumeBytes(b)
		case num == 2 && typ == protowire.VarintType:
			e.epoch, n = protowire.ConsumeVarint(b)
		case num == 3 && typ == protowire.VarintType:
			e.head, n = protowire.ConsumeVarint(b)
		case num == 6 && typ == protowire.VarintType:
			e.base, n = protowire.ConsumeVarint(b)
		case num == 4 && typ == protowire.BytesType:
			var event []byte
			if event, n = protowire.ConsumeBytes(b); n >= 0 && !decodeEvent(e.next(), event) {
				return errEnvelope
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return errEnvelope
		}
		b = b[n:]
	}
	if len(e.channel) == 0 || e.epoch == 0 {
		return errEnvelope
	}
	return nil
}

// next adds an event, one used before if there is any.
func (e *envelope) next() *gatewayv1.BusEvent {
	if len(e.events) < cap(e.events) {
		e.events = e.events[:len(e.events)+1]
	} else {
		e.events = slices.Grow(e.events, 1)
		e.events = e.events[:len(e.events)+1]
	}
	last := &e.events[len(e.events)-1]
	if *last == nil {
		*last = new(gatewayv1.BusEvent)
	}
	return *last
}

func decodeEvent(ev *gatewayv1.BusEvent, b []byte) bool {
	ev.Offset, ev.TimeMs, ev.Data, ev.Binary, ev.From, ev.Meta = 0, 0, nil, false, "", nil
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			ev.Offset, n = protowire.ConsumeVarint(b)
		case num == 2 && typ == protowire.VarintType:
			ev.TimeMs, n = protowire.ConsumeVarint(b)
		case num == 3 && typ == protowire.BytesType:
			ev.Data, n = protowire.ConsumeBytes(b)
		case num == 4 && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			ev.Binary = v != 0
		case num == 5 && typ == protowire.BytesType:
			var from []byte
			from, n = protowire.ConsumeBytes(b)
			ev.From = string(from)
		case num == 6 && typ == protowire.BytesType:
			ev.Meta, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return ev.Offset > 0
}
