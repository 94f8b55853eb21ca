package router

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
// What was cut on the way is counted.
func (s *sequencer) handedAsyncLocked(ch *channel, r *received) {
	if ch.async == nil {
		ch.async = new(asyncState)
	}
	a, m := ch.async, r.meta
	a.row = point{m.RowEpoch, m.RowHead}
	a.written = ch.head - min(ch.head, m.Unwritten)
	a.gone = max(a.written, ch.tail.firstOr(ch.head+1)-1)
	s.metrics.asyncLost.Add(float64(r.unwritten() - (ch.head - a.gone)))
	size := int64(0)
	unwritten, _ := ch.tail.after(a.gone, len(ch.tail.events), 0)
	for _, e := range unwritten {
		size += eventSize(e)
	}
	if a.loose = s.behind.bytes.Load()+size > s.cfg.AsyncBytes; a.loose {
		s.metrics.asyncLoose.Inc()
	} else {
		a.bytes = size
		s.behind.bytes.Add(size)
	}
	if s.queueWriteLocked(ch) {
		s.behind.list.push(ch)
	}
}

// unwritten is how many events were handed that the store does not have; what the giver
// had let go before was counted there.
func (r *received) unwritten() uint64 {
	m := r.meta
	if !m.Behind || r.first == 0 || m.Unwritten == 0 {
		return 0
	}
	return m.Head - min(m.Head, max(m.Head-min(m.Head, m.Unwritten), r.first-1))
}

// lateLocked is what a hand that was not taken has of events that are nowhere else. ch is
// locked; nil: this router does not know the namespace.
func (r *received) lateLocked(ch *channel) uint64 {
	if ch != nil && (ch.tenure.floor.epoch == r.meta.Epoch || ch.known && ch.epoch == r.meta.Epoch) {
		return 0 // it came before
	}
	return r.unwritten()
}
