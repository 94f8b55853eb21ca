package machine

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// subPhase is where a subscription stands on the current link.
type subPhase uint8

const (
	idle    subPhase = iota // not asked for
	asked                   // by the command askID
	pending                 // the verdict will come as a push
	live
	over // ended; not in machine.subs any more
)

// Subscribe takes a new subscription.
func (m *Machine) Subscribe(now time.Time, s *Subscription) error {
	if m.subs[s.channel] != nil {
		return ErrSubscribed
	}
	m.keep(s)
	m.askIdle(now)
	return nil
}

func (m *Machine) keep(s *Subscription) {
	if m.subs == nil {
		m.subs = map[string]*Subscription{}
	}
	m.subsMade++
	s.made = m.subsMade
	m.subs[s.channel] = s
}

// Unsubscribe ends one. While an attempt to move is under way the server hears of it
// when that has ended, and an old connection only if it has to serve again.
func (m *Machine) Unsubscribe(s *Subscription) {
	if s.at.phase == over {
		return
	}
	known, before := s.at.phase != idle, s.was.phase != idle
	m.remove(s)
	l := m.link
	if l == nil || l.phase != up {
		return
	}
	switch {
	case known && m.ahead != nil:
		l.unsubscribing = append(l.unsubscribing, s.channel)
	case known:
		m.sendUnsubscribe(l, s.channel)
	}
	if before && m.old != nil {
		m.old.unsubscribing = append(m.old.unsubscribing, s.channel)
	}
}

func (m *Machine) sendUnsubscribe(l *link, channel string) {
	m.command(l, &command{kind: cmdUnsubscribe}, &clientv1.ClientFrame{
		Frame: &clientv1.ClientFrame_Unsubscribe{Unsubscribe: &clientv1.Unsubscribe{Channel: channel}},
	})
}

func (m *Machine) remove(s *Subscription) {
	m.oldDone(s)
	m.forget(&s.was)
	m.forget(&s.at)
	s.at.phase = over
	if m.subs[s.channel] == s {
		delete(m.subs, s.channel)
	}
}

// position as connect and subscribe tell it; zero: none.
func (s *Subscription) position() Position {
	if s.known {
		return s.pos
	}
	return Position{}
}

// request is the question for this subscription: from its position on, else for
// its newest events, else from now on.
func (s *Subscription) request() *clientv1.SubscriptionRequest {
	r := &clientv1.SubscriptionRequest{Channel: s.channel}
	switch {
	case s.known:
		offset := s.pos.Offset
		r.Epoch, r.Offset = s.pos.Epoch, &offset
	case s.last > 0:
		r.Last = s.last
	}
	return r
}

// askSize is at least what an entry adds to a frame.
func askSize(r *clientv1.SubscriptionRequest) int {
	f := clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Subscribe{Subscribe: &clientv1.Subscribe{
		Subscriptions: []*clientv1.SubscriptionRequest{r}, Single: true,
	}}}
	return len(wire.AppendClient(nil, &f))
}

// askIdle asks for every subscription that is due, in as few frames as may be.
// It waits while an attempt to move is under way, whose connect told the list.
func (m *Machine) askIdle(now time.Time) {
	if m.link == nil || m.link.phase != up || m.ahead != nil {
		return
	}
	const head = 64 // of the frame around the list
	var batch []*Subscription
	size := head
	flush := func() {
		if len(batch) > 0 {
			m.askFor(batch)
		}
		batch, size = nil, head
	}
	m.link.askAt = time.Time{}
	for _, s := range m.inOrder() {
		switch {
		case s.at.phase != idle:
		case now.Before(s.retryAt):
			if at := m.link.askAt; at.IsZero() || s.retryAt.Before(at) {
				m.link.askAt = s.retryAt
			}
		default:
			n := askSize(s.request())
			if size+n > m.link.maxFrame {
				flush()
			}
			size += n
			batch = append(batch, s)
		}
	}
	flush()
}

func (m *Machine) askFor(subs []*Subscription) {
	ask := &clientv1.Subscribe{Single: len(subs) == 1}
	for _, s := range subs {
		ask.Subscriptions = append(ask.Subscriptions, s.request())
	}
	id := m.command(m.link, &command{kind: cmdSubscribe, subs: subs}, &clientv1.ClientFrame{
		Frame: &clientv1.ClientFrame_Subscribe{Subscribe: ask},
	})
	for _, s := range subs {
		s.at = stream{phase: asked, askID: id, asked: s.position()}
	}
}

// askAgain for what was refused for a while.
func (m *Machine) askAgain(now time.Time) {
	if at := m.link.askAt; !at.IsZero() && !now.Before(at) {
		m.askIdle(now)
	}
}

// subscribed brings answers (to the command id) or verdicts (id 0).
func (m *Machine) subscribed(now time.Time, l *link, id uint32, f *clientv1.Subscribed) {
	delete(l.open, id)
	if l != m.link {
		return // only the connection that serves is asked
	}
	for _, e := range f.Subscriptions {
		s := m.subs[e.Channel]
		if s == nil {
			continue
		}
		if st := &s.at; st.phase == asked && st.askID == id || st.phase == pending && id == 0 {
			m.entry(now, s, e)
		}
	}
	// A channel that the answer left out would wait for ever.
	for _, s := range m.subs {
		if id != 0 && s.at.phase == asked && s.at.askID == id {
			m.subscriptionFailed(now, s, &clientv1.Error{
				Code: clientv1.ErrorCode_ERROR_CODE_INTERNAL, Message: "the answer does not name the channel", Temporary: true,
			})
		}
	}
}

// entry applies where a subscription stands.
func (m *Machine) entry(now time.Time, s *Subscription, e *clientv1.SubscriptionEntry) {
	st, covered := &s.at, s.was.phase == live
	switch {
	case e.Error != nil:
		m.subscriptionFailed(now, s, e.Error)
		return
	case e.Pending:
		if st.phase = pending; !covered {
			m.do(TellSubscribed{s, Subscribed{Pending: true}})
		}
		return
	}
	st.phase, st.epoch, st.target, s.refusals = live, e.Epoch, Position{e.Epoch, e.Offset}, 0
	switch {
	case covered:
		m.join(s, e)
	case s.known && st.asked == Position{} && (e.Epoch != s.pos.Epoch || e.Offset > s.pos.Offset):
		// This was asked before there was a position; the connection that brought one
		// has ended. History may have what is between.
		m.askAnew(now, s)
	case s.known && s.pos != st.asked:
		// Another connection brought more since this was asked, and has ended.
		before := m.stats.Gaps
		m.join(s, e)
		m.do(TellSubscribed{s, Subscribed{Position: s.pos, Head: e.Offset, Recovered: m.stats.Gaps == before}})
	default:
		m.verdict(s, e)
	}
}

// askAnew ends a subscription of the connection that serves and asks again, from the
// position that there is now. What was on its way comes in phases that are not live.
func (m *Machine) askAnew(now time.Time, s *Subscription) {
	m.forget(&s.at)
	m.sendUnsubscribe(m.link, s.channel)
	m.askIdle(now)
}

// verdict for a subscription that nothing else has served.
func (m *Machine) verdict(s *Subscription, e *clientv1.SubscriptionEntry) {
	had, before := s.known, s.pos
	s.known = true
	switch {
	case e.From != nil:
		s.pos = Position{e.Epoch, *e.From}
	case e.Recovered && had:
		s.pos.Epoch = e.Epoch
	case had:
		s.jump(Position{e.Epoch, e.Offset})
	default:
		s.pos = Position{e.Epoch, e.Offset}
	}
	if had && !e.Recovered {
		m.stats.Gaps++
		m.do(TellGap{s, Gap{before, s.pos, "not_recovered", millis(e.GetReloadAfterMs())}})
	}
	m.do(TellSubscribed{s, Subscribed{Position: s.pos, Head: e.Offset, Recovered: e.Recovered}})
}

// join lets a stream of the new connection begin beside that of the old one, or
// behind where that has ended.
func (m *Machine) join(s *Subscription, e *clientv1.SubscriptionEntry) {
	if st := &s.at; !e.Recovered || e.Epoch != st.asked.Epoch {
		m.hear(s, st, news{to: st.target, reason: "not_recovered", reload: millis(e.GetReloadAfterMs())})
	}
	m.took(s)
}

// subscriptionFailed: refused for a while, or for good.
func (m *Machine) subscriptionFailed(now time.Time, s *Subscription, e *clientv1.Error) {
	err := newError(e)
	if !e.Temporary {
		m.remove(s)
		m.do(TellEnd{s, err})
		return
	}
	wait := min(err.RetryAfter, serverWaitMax)
	if wait == 0 {
		cap := min(backoffCap, backoffBase<<min(s.refusals, capFailures))
		wait = cap/2 + m.cfg.Random(cap)
	}
	s.refusals++
	s.at = stream{}
	s.retryAt = now.Add(wait)
	if at := m.link.askAt; at.IsZero() || s.retryAt.Before(at) {
		m.link.askAt = s.retryAt
	}
	if s.was.phase != live { // else its events go on for now
		m.do(TellError{s, err})
	}
}

// unsubscribed: the answer to unsubscribe, or (id 0) the server ended it.
func (m *Machine) unsubscribed(l *link, id uint32, f *clientv1.Unsubscribed) {
	if id != 0 {
		delete(l.open, id)
		return
	}
	s := m.subs[f.Channel]
	st := m.stream(s, l)
	switch {
	case st == nil || st.phase == idle || st.phase == asked:
		return
	case l == m.old: // the new connection says what becomes of it
		m.oldDone(s)
		m.forget(st)
		m.pump(s)
		return
	}
	var err error = ErrUnsubscribed
	if f.Error != nil {
		err = newError(f.Error)
	}
	m.remove(s)
	m.do(TellEnd{s, err})
}
