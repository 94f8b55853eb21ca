package channel

// queue is the publications of a channel that wait, in order of arrival.
type queue struct {
	pending      []*Publication // in order of arrival
	pendingBytes int64
}

// collect takes publications out of the queue.
func (q *queue) collect(s *Step, events int, bytes int64) (pubs []*Publication) {
	n, size := 0, int64(0)
	for n < len(q.pending) && len(pubs) < events && (size < bytes || len(pubs) == 0) {
		p := q.pending[n]
		q.pending[n] = nil
		n++
		q.pendingBytes -= p.Size()
		switch {
		case p.Take():
			pubs = append(pubs, p)
			size += p.Size()
		case p.Stage() == Abandoned:
			s.Out.Drop(p)
		}
	}
	if q.pending = q.pending[n:]; len(q.pending) == 0 {
		q.pending = nil
	}
	return pubs
}

// requeue puts publications back to the front.
func (q *queue) requeue(back []*Publication) {
	if len(back) == 0 {
		return
	}
	for _, p := range back {
		q.pendingBytes += p.Size()
		p.Requeue()
	}
	q.pending = append(back, q.pending...)
}
