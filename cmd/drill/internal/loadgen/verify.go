package loadgen

import "time"

// maxMissing bounds the memory of what was skipped; what is skipped past it and comes
// late counts as duplicate.
const maxMissing = 1 << 20

// missing is an event that was skipped on a stream. A stream is reused by the next
// connection of its client, so the session stands beside it.
type missing struct {
	stream *stream
	began  int64
	offset uint64
}

// delivered checks one event against its connection, and hands it to its client. i is
// the subscription; -1: not one of it.
func (l *loop) delivered(k *conn, i int, offset uint64, data []byte) {
	if i < 0 || i >= len(k.subs) || !k.subs[i].live {
		l.counts.Unexpected++
		return
	}
	s := &k.subs[i]
	if offset <= s.end {
		l.again(k, s, offset)
		l.payload(k, i, data, false)
		return
	}
	holes := offset - s.end - 1
	if holes > 0 {
		l.skipped(k, s, offset)
		s.seq = 0
	}
	s.end = offset
	l.payload(k, i, data, true)
	l.advance(k, i, holes)
	if l.notify > 0 && l.counts.Deliveries >= l.notifyAt {
		l.notifyAt += l.notify
		l.tell = true
	}
}

// advance moves the client's position to what a conn has brought. Two connections
// bring the same events while the client moves: what one of them has ahead of a hole
// waits for the other. holes is how many events below the newest are counted as lost.
func (l *loop) advance(k *conn, i int, holes uint64) {
	c := k.client
	s, p := &k.subs[i], &c.subs[i]
	o := k.other().stream(i)
	switch {
	case s.extends(p):
		n := s.end - p.offset
		l.counts.Deliveries += n - min(holes, n-1)
		p.offset, p.seq = s.end, s.seq
	case s.epoch == p.epoch && s.end <= p.offset:
		l.counts.Overlap++
		return
	case o != nil:
		return // the other one may still bring what lies between
	default:
		l.jump(k, i)
	}
	if o != nil && o.extends(p) {
		l.counts.Deliveries += o.end - p.offset
		p.offset, p.seq = o.end, o.seq
	}
	if c.behind || k.other().state == up {
		l.takeOver(c)
	}
}

// stream is subscription i of a conn that is welcomed; nil: it has none.
func (k *conn) stream(i int) *stream {
	if !k.welcomed() || i >= len(k.subs) || !k.subs[i].live {
		return nil
	}
	return &k.subs[i]
}

// extends says that the stream continues a position without a hole.
func (s *stream) extends(p *position) bool {
	return s.epoch == p.epoch && s.start <= p.offset && s.end > p.offset
}

// place begins a stream at a position that the server named. While another conn of
// the client brings the channel, what lies between may still come there.
func (l *loop) place(k *conn, i int, epoch string, offset uint64) {
	k.subs[i] = stream{live: true, epoch: epoch, start: offset, end: offset, head: offset}
	p := &k.client.subs[i]
	if k.other().stream(i) == nil || !p.known {
		l.jump(k, i)
	}
	p.known = true
}

// jump takes the stream's word for where the client is: the server said that what lies
// before its start is lost to this client.
func (l *loop) jump(k *conn, i int) {
	s, p := &k.subs[i], &k.client.subs[i]
	if p.known && s.epoch == p.epoch && s.start > p.offset {
		l.counts.Announced += s.start - p.offset
	}
	l.counts.Deliveries += s.end - s.start
	p.epoch, p.offset, p.seq = s.epoch, s.end, s.seq
}

// adopt settles the positions when one of two connections has ended: nothing more
// comes from it.
func (l *loop) adopt(ended *conn) {
	o := ended.other()
	for i := range o.subs {
		s, p := &o.subs[i], &o.client.subs[i]
		if s.live && (s.epoch != p.epoch || s.start > p.offset) {
			l.jump(o, i)
		}
	}
}

// skipped remembers the hole below offset.
func (l *loop) skipped(k *conn, s *stream, offset uint64) {
	n := offset - s.end - 1
	l.counts.Lost += n
	for o := s.end + 1; o < offset && len(l.missing) < maxMissing; o++ {
		l.missing[missing{s, k.began, o}] = struct{}{}
	}
}

// again is an event at or below what the conn has brought.
func (l *loop) again(k *conn, s *stream, offset uint64) {
	m := missing{s, k.began, offset}
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
func (l *loop) payload(k *conn, i int, data []byte, inOrder bool) {
	if !l.cfg.CheckPayload {
		return
	}
	s, ch := &k.subs[i], k.client.subs[i].channel
	seq, sent, ok := readPayload(data, l.nameBytes(ch))
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
