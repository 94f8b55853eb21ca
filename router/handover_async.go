package router

import gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"

// dropAsyncLocked lets go of what is written behind: it was handed on, or a newer
// epoch was handed here. The writer may still have the channel in its hands. Its
// shard is locked.
func (s *sequencer) dropAsyncLocked(ch *channel, res result) {
	a := ch.async
	if a == nil {
		return
	}
	s.behind.bytes.Add(-a.bytes)
	for _, k := range a.acks {
		s.finish(k.p, res)
	}
	*a = asyncState{queued: a.queued}
}

// handedAsyncLocked goes on writing where the giver was; a write of its that was under
// way is found when the row is not where it should be. The shard is locked.
func (s *sequencer) handedAsyncLocked(ch *channel, m *gatewayv1.HandedChannel) {
	if ch.async == nil {
		ch.async = new(asyncState)
	}
	a := ch.async
	a.row = point{m.RowEpoch, m.RowHead}
	a.written = ch.head - min(ch.head, m.Unwritten)
	a.gone = a.written
	if len(ch.tail.events) > 0 {
		a.gone = max(a.written, ch.tail.first-1)
	} else if m.Unwritten > 0 {
		a.gone = ch.head
	}
	size := int64(0)
	unwritten, _ := ch.tail.after(a.gone, len(ch.tail.events), 0)
	for _, e := range unwritten {
		size += eventSize(e)
	}
	if a.loose = s.behind.bytes.Load()+size > s.cfg.AsyncBytes; !a.loose {
		a.bytes = size
		s.behind.bytes.Add(size)
	}
	if s.queueWriteLocked(ch) {
		s.behind.list.push(ch)
	}
}
