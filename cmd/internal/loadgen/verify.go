package loadgen

import "time"

// maxMissing bounds the memory of what was skipped; what is skipped past it and comes
// late counts as duplicate.
const maxMissing = 1 << 20

// missing is an event that was skipped.
type missing struct {
	sub    *subscription
	offset uint64
}

// delivered checks one event; s is nil if its channel is not subscribed.
func (l *loop) delivered(c *conn, s *subscription, offset uint64, data []byte) {
	if s == nil || !s.live {
		l.counts.Unexpected++
		return
	}
	switch {
	case offset == s.offset+1:
		s.offset = offset
		l.counts.Deliveries++
		l.payload(s, data, true)
	case offset > s.offset:
		l.skipped(s, offset)
		s.offset, s.seq = offset, 0
		l.counts.Deliveries++
		l.payload(s, data, true)
	default:
		l.again(s, offset)
		l.payload(s, data, false)
	}
	if l.notify > 0 && l.counts.Deliveries >= l.notifyAt {
		l.notifyAt += l.notify
		l.tell = true
	}
}

// skipped remembers the hole below offset.
func (l *loop) skipped(s *subscription, offset uint64) {
	l.counts.Lost += offset - s.offset - 1
	for o := s.offset + 1; o < offset && len(l.missing) < maxMissing; o++ {
		l.missing[missing{s, o}] = struct{}{}
	}
}

// again is an event at or below the position.
func (l *loop) again(s *subscription, offset uint64) {
	m := missing{s, offset}
	if _, late := l.missing[m]; late {
		delete(l.missing, m)
		l.counts.Lost--
		l.counts.OutOfOrder++
		l.counts.Deliveries++
		return
	}
	l.counts.Duplicate++
}

// payload checks the data of an event and takes its age. In order, the publisher's
// numbers rise by one too: a number twice is an event that was stored twice.
func (l *loop) payload(s *subscription, data []byte, inOrder bool) {
	if !l.cfg.CheckPayload {
		return
	}
	seq, sent, ok := readPayload(data, l.nameBytes(s.channel))
	if !ok {
		l.counts.BadPayload++
		return
	}
	l.latency.add(int64(time.Since(l.start)) + l.startNS - sent)
	if !inOrder {
		return
	}
	switch {
	case s.seq == 0 || seq == s.seq+1:
	case seq > s.seq:
		l.counts.SeqSkips += seq - s.seq - 1
	default:
		l.counts.SeqRepeats++
		return // keeps the highest
	}
	s.seq = seq
}

// nameBytes is the name without its JSON clothes; no copy.
func (l *loop) nameBytes(ch *channel) []byte { return ch.head[1 : 1+len(ch.name)] }
