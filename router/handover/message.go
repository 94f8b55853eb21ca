package handover

import (
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
)

const (
	// messageBytes bounds a message, below the receiver's limit; one event may pass it.
	messageBytes = 2 << 20
	// messageChannels bounds it too: all of it waits until it is answered.
	messageChannels = 200
)

// message is a part of what is handed over. A channel that does not fit goes on in the
// next message.
type message struct {
	request *gatewayv1.HandRequest
	ends    []*channel.Handed // channels of which the last part is in it
	size    int
}

// split makes messages of channels, in order.
func split(all []*channel.Handed) []*message {
	var messages []*message
	var m *message
	next := func() {
		m = &message{request: &gatewayv1.HandRequest{}}
		messages = append(messages, m)
	}
	next()
	for _, h := range all {
		for from := 0; ; {
			to, ended := m.add(h, from)
			if ended {
				break
			}
			from = to
			next()
		}
	}
	return messages
}

// add puts as much of a channel into the message as fits, its events from an index on; it
// returns up to which, and whether that is all.
func (m *message) add(h *channel.Handed, from int) (to int, all bool) {
	c := proto.CloneOf(h.Meta)
	size := proto.Size(c) + 16
	for _, k := range h.Keys {
		size += len(k.Scope) + len(k.Key) + 16
	}
	if len(m.request.Channels) > 0 && m.size+size > messageBytes {
		return from, false
	}
	for to = from; to < len(h.Events); to++ {
		next := proto.Size(h.Events[to]) + 8
		if (len(m.request.Channels) > 0 || to > from) && m.size+size+next > messageBytes {
			break
		}
		size += next
	}
	c.Events, c.More = h.Events[from:to], to < len(h.Events)
	if !c.More {
		c.Keys = h.Keys
		m.ends = append(m.ends, h)
	}
	m.request.Revision = max(m.request.Revision, h.Revision)
	m.request.Channels = append(m.request.Channels, c)
	m.size += size
	return to, !c.More
}

// join puts the parts of a channel together, as they come. Past the limit the oldest
// events go.
type join struct {
	handed *channel.Handed
	bytes  int64
}

// add takes a part of a channel; nil: more will come.
func (j *join) add(c *gatewayv1.HandedChannel, revision uint64, limit int64) *channel.Handed {
	if j.handed == nil || j.handed.Meta.Channel != c.Channel {
		*j = join{handed: &channel.Handed{Meta: c}}
	}
	h := j.handed
	h.Keys, h.Revision = c.Keys, max(h.Revision, revision)
	for _, e := range c.Events {
		j.bytes += channel.EventSize(e)
	}
	h.Events = append(h.Events, c.Events...)
	for len(h.Events) > 0 && j.bytes > limit {
		j.bytes -= channel.EventSize(h.Events[0])
		h.Events = h.Events[1:]
	}
	if c.More {
		return nil
	}
	*j = join{}
	return h
}
