package gateway

import (
	"github.com/spillway-io/spillway/gateway/feed"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// liveEvents are the next events of one channel.
type liveEvents struct {
	channel string
	epoch   uint64
	frames  []feed.Frame
	size    int64
}

// Live is called by the channel table; it posts.
func (l *loop) Live(channel string, epoch uint64, frames []feed.Frame, hasHistory bool) {
	size := 0
	for i := range frames {
		size += len(frames[i].Text)
	}
	// Live events are the one thing here that load makes grow: a loop that is too far
	// behind lets them go, and its subscribers are served from history.
	if have := l.liveBytes.Load(); have > 0 && have+int64(size) > int64(l.edge.cfg.InboxBytes) {
		l.shed.add(channel)
		l.poller.Wake()
		return
	}
	l.liveBytes.Add(int64(size))
	l.inbox.Post(&liveEvents{channel, epoch, frames, int64(size)})
}

func (m *liveEvents) apply(l *loop) {
	l.liveBytes.Add(-m.size)
	ch := l.channels[m.channel]
	if ch == nil {
		return
	}
	for _, s := range ch.subs {
		s.take(m.epoch, m.frames)
	}
}

// take queues the frames that come next for a live subscription. A hole means
// that events were shed on the way to this loop.
func (s *subscription) take(epoch uint64, frames []feed.Frame) {
	for _, f := range frames {
		switch {
		case s.state != subLive:
			return
		case epoch == s.epoch && f.Offset <= s.pos:
			// had it
		case epoch != s.epoch || f.Offset != s.pos+1:
			s.fallBehind()
		default:
			s.deliver(f)
		}
	}
}

// deliver queues the event at pos+1, or holds it behind an unanswered command.
func (s *subscription) deliver(f feed.Frame) {
	if s.req == nil {
		s.c.pushEvent(s, f)
		return
	}
	if s.c.heldBytes+len(f.Text) > s.c.loop.edge.cfg.SendQueueBytes {
		s.fallBehind()
		return
	}
	s.c.heldBytes += len(f.Text)
	s.held = append(s.held, f)
	s.pos = f.Offset
}

// channelGap says that events are lost for whoever lacks them.
type channelGap struct{ feed.Gap }

// Gap is called by the channel table; it posts.
func (l *loop) Gap(g feed.Gap) { l.inbox.Post(&channelGap{g}) }

func (m *channelGap) apply(l *loop) {
	ch := l.channels[m.Channel]
	if ch == nil {
		return
	}
	for _, s := range ch.subs {
		switch {
		case s.state != subLive || m.Epoch < s.epoch || m.Epoch == s.epoch && m.Offset <= s.pos:
		case s.req != nil:
			s.fallBehind() // its own pull will find the gap, after its verdict was told
		case m.Epoch == s.epoch && s.pos < m.From:
			s.fallBehind() // what was shed before the gap is not lost
		default:
			s.gap(m.Epoch, m.Offset, m.Reason)
		}
	}
}

// gap tells the client that events up to offset are lost and goes on from there.
func (s *subscription) gap(epoch, offset uint64, reason string) {
	e := s.c.loop.edge
	s.epoch, s.pos = epoch, offset
	e.metrics.gaps.Inc()
	s.c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{
		Channel:       s.channel.name,
		Epoch:         wire.FormatEpoch(epoch),
		Offset:        offset,
		Reason:        reason,
		ReloadAfterMs: e.reloads.slot(),
	}}})
}

// piece is the table's answer to a pull.
type piece struct{ feed.Piece }

// Piece is called by the channel table; it posts.
func (l *loop) Piece(p feed.Piece) { l.inbox.Post(&piece{p}) }

func (m *piece) apply(l *loop) {
	c := l.find(m.Conn)
	if c == nil || c.closed {
		return
	}
	s := c.subscription(m.Channel)
	switch {
	case s == nil || s.id != m.Sub: // unsubscribed meanwhile
	case m.Status == feed.Pending: // the table goes on asking, and answerLate tells
		s.park()
	case s.state == subWaiting:
		s.verdict(&m.Piece)
	case s.state == subPulling:
		s.pulled(&m.Piece)
		c.catchUp()
	}
}

// park lets the conn's others be served while nobody can say what s has missed.
func (s *subscription) park() {
	if s.state == subPulling && !s.parked {
		s.parked, s.c.pulling = true, false
		s.c.catchUp()
	}
}

// pulled takes what the table had for s. What was parked has lost its turn: if there is
// no room now, it asks again when it has one.
func (s *subscription) pulled(p *feed.Piece) {
	if !s.parked {
		s.c.pulling = false
		s.more(p)
		return
	}
	s.parked = false
	if s.c.pulling || s.c.out.Len() > 0 {
		s.set(subBehind)
		return
	}
	s.more(p)
}

// verdict says where a new subscription stands.
func (s *subscription) verdict(p *feed.Piece) {
	if p.Status != feed.OK {
		s.refuse(p)
		return
	}
	entry := &clientv1.SubscriptionEntry{
		Channel:   s.channel.name,
		Epoch:     wire.FormatEpoch(p.Epoch),
		Offset:    p.Head,
		Recovered: p.Recovered,
	}
	if s.last > 0 && !s.asked {
		from := p.From
		entry.From = &from
	}
	if s.asked && !p.Recovered {
		after := s.c.loop.edge.reloads.slot()
		entry.ReloadAfterMs = &after
	}
	s.epoch, s.pos, s.history = p.Epoch, p.From, p.HasHistory
	s.set(subPulling) // until more says otherwise
	s.tell(entry)
	s.more(p)
	s.c.catchUp()
}

// more queues what the table had for s and tells whether it is live now.
func (s *subscription) more(p *feed.Piece) {
	switch {
	case p.Status != feed.OK:
		s.end(s.pieceError(p))
		return
	case p.Epoch != s.epoch || p.From > s.pos:
		s.gap(p.Epoch, p.From, feed.ReasonHistory)
	}
	for _, f := range p.Frames {
		if f.Offset == s.pos+1 {
			s.deliver(f)
		}
		if s.state == subBehind {
			return // the queue did not take it all
		}
	}
	if p.Live {
		s.set(subLive)
		return
	}
	s.set(subBehind)
}

// tell gives the verdict to the command that waits for it, or pushes it.
func (s *subscription) tell(entry *clientv1.SubscriptionEntry) {
	if s.req != nil {
		s.req.verdict(s, entry)
		return
	}
	s.c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Subscribed{
		Subscribed: &clientv1.Subscribed{Subscriptions: []*clientv1.SubscriptionEntry{entry}, Single: true},
	}})
}

// refuse ends a subscription whose channel the router will not give.
func (s *subscription) refuse(p *feed.Piece) {
	entry := &clientv1.SubscriptionEntry{Channel: s.channel.name, Error: s.pieceError(p)}
	if s.req == nil {
		s.end(entry.Error)
		return
	}
	s.tell(entry)
	s.c.remove(s)
}

// end tells the client that the server ended one subscription.
func (s *subscription) end(why *clientv1.Error) {
	s.c.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Unsubscribed{
		Unsubscribed: &clientv1.Unsubscribed{Channel: s.channel.name, Error: why},
	}})
	s.c.remove(s)
}

func (s *subscription) pieceError(p *feed.Piece) *clientv1.Error {
	e := &clientv1.Error{Message: p.Message}
	switch p.Status {
	case feed.Forbidden:
		e.Code = commands{s.c}.lacking()
	case feed.NotFound:
		e.Code = clientv1.ErrorCode_ERROR_CODE_NOT_FOUND
	default:
		e.Code = clientv1.ErrorCode_ERROR_CODE_BAD_REQUEST
	}
	return e
}
