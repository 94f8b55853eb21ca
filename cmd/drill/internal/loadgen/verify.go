package loadgen

import (
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	"github.com/spillway-io/spillway/gateway/client/machine"
)

// stream is what one connection has brought of a channel: while it is live, all up to
// end. The machine drops what it has already, so that only this shows what an edge sends
// twice.
type stream struct {
	live bool // the verdict has come
	end  uint64
}

// noteAsked notes from where the connect frame, which is being sent, asks for each channel.
func (k *conn) noteAsked() {
	k.subs = k.subs[:0]
	for i := range k.client.subs {
		p, _ := k.client.subs[i].Position()
		k.subs = append(k.subs, stream{end: p.Offset})
	}
}

// checkStream checks one event against its connection. i is the subscription; -1: the client
// has none of this channel.
func (l *loop) checkStream(k *conn, i int, offset uint64) {
	if i < 0 || i >= len(k.subs) || !k.subs[i].live {
		l.counts.Unexpected++
		return
	}
	if s := &k.subs[i]; offset > s.end {
		s.end = offset
	} else {
		l.counts.Duplicate++
	}
}

// delivered is an event that the machine hands over. In order, the publisher's numbers
// rise by one too: a number twice is an event that was stored twice.
func (l *loop) delivered(s *subscription, e *machine.Event) {
	l.counts.Deliveries++
	if l.notify > 0 && l.counts.Deliveries >= l.notifyAt {
		l.notifyAt += l.notify
		l.tellNow = true
	}
	if !l.cfg.CheckPayload {
		return
	}
	seq, sent, ok := payload.Read(e.Data, s.channel.nameBytes())
	if !ok {
		l.counts.BadPayload++
		return
	}
	l.latency.add(int64(time.Since(l.start)) + l.startNS - sent)
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

// gap is what the machine announces as lost: as the server said, or because events are
// missing without a word. As far as offsets tell: not across epochs.
func (l *loop) gap(s *subscription, g *machine.Gap) {
	s.seq = 0
	if g.From.Epoch != g.Epoch {
		return
	}
	if n := g.Offset - g.From.Offset; g.Reason == machine.Skipped {
		l.counts.Lost += n
	} else {
		l.counts.Announced += n
	}
}

// nameBytes is the name without its JSON clothes; no copy.
func (ch *channel) nameBytes() []byte { return ch.head[1 : 1+len(ch.name)] }
