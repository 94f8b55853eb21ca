package client

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

// subscribe takes a new subscription.
func (m *machine) subscribe(now time.Time, s *Subscription) error {
	if m.subs[s.channel] != nil {
		return ErrSubscribed
	}
	m.keep(s)
	if m.link != nil && m.link.phase == up {
		m.askIdle(now)
	}
	return nil
}

func (m *machine) keep(s *Subscription) {
	m.subsMade++
	s.made = m.subsMade
	m.subs[s.channel] = s
}

// unsubscribe ends one.
func (m *machine) unsubscribe(s *Subscription) {
	if s.phase == over {
		return
	}
	asked := s.phase != idle
	m.remove(s)
	if l := m.link; asked && l != nil && l.phase == up {
		m.command(&command{kind: cmdUnsubscribe}, &clientv1.ClientFrame{
			Frame: &clientv1.ClientFrame_Unsubscribe{Unsubscribe: &clientv1.Unsubscribe{Channel: s.channel}},
		})
	}
}

func (m *machine) remove(s *Subscription) {
	s.phase = over
	if m.subs[s.channel] == s {
		delete(m.subs, s.channel)
	}
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
func (m *machine) askIdle(now time.Time) {
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
		case s.phase != idle:
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

func (m *machine) askFor(subs []*Subscription) {
	ask := &clientv1.Subscribe{Single: len(subs) == 1}
	for _, s := range subs {
		ask.Subscriptions = append(ask.Subscriptions, s.request())
	}
	id := m.command(&command{kind: cmdSubscribe, subs: subs}, &clientv1.ClientFrame{
		Frame: &clientv1.ClientFrame_Subscribe{Subscribe: ask},
	})
	for _, s := range subs {
		s.phase, s.askID = asked, id
	}
}

// askAgain for what was refused for a while.
func (m *machine) askAgain(now time.Time) {
	if at := m.link.askAt; !at.IsZero() && !now.Before(at) {
		m.askIdle(now)
	}
}

// subscribed brings answers (to the command id) or verdicts (id 0).
func (m *machine) subscribed(now time.Time, id uint32, f *clientv1.Subscribed) {
	delete(m.open, id)
	for _, e := range f.Subscriptions {
		s := m.subs[e.Channel]
		if s == nil {
			continue
		}
		if s.phase == asked && s.askID == id || s.phase == pending && id == 0 {
			m.entry(now, s, e)
		}
	}
	// A channel that the answer left out would wait for ever.
	for _, s := range m.subs {
		if id != 0 && s.phase == asked && s.askID == id {
			m.subscriptionFailed(now, s, &clientv1.Error{
				Code: clientv1.ErrorCode_ERROR_CODE_INTERNAL, Message: "the answer does not name the channel", Temporary: true,
			})
		}
	}
}

// entry applies where a subscription stands.
func (m *machine) entry(now time.Time, s *Subscription, e *clientv1.SubscriptionEntry) {
	switch {
	case e.Error != nil:
		m.subscriptionFailed(now, s, e.Error)
		return
	case e.Pending:
		s.phase = pending
		m.do(tellSubscribed{s, Subscribed{Pending: true}})
		return
	}
	s.phase, s.refused = live, 0
	had, before := s.known, s.pos
	s.known = true
	switch {
	case e.From != nil:
		s.pos = Position{e.Epoch, *e.From}
	case e.Recovered && had:
		s.pos.Epoch = e.Epoch
	default:
		s.pos = Position{e.Epoch, e.Offset}
	}
	if had && !e.Recovered {
		m.do(tellGap{s, Gap{before, s.pos, "not_recovered", millis(e.GetReloadAfterMs())}})
	}
	m.do(tellSubscribed{s, Subscribed{Position: s.pos, Head: e.Offset, Recovered: e.Recovered}})
}

// subscriptionFailed: refused for a while, or for good.
func (m *machine) subscriptionFailed(now time.Time, s *Subscription, e *clientv1.Error) {
	err := newError(e)
	if !e.Temporary {
		m.remove(s)
		m.do(tellEnd{s, err})
		return
	}
	wait := min(err.RetryAfter, serverWaitMax)
	if wait == 0 {
		cap := min(backoffCap, backoffBase<<min(s.refused, capFailures))
		wait = cap/2 + m.random(cap)
	}
	s.refused++
	s.phase, s.retryAt = idle, now.Add(wait)
	if at := m.link.askAt; at.IsZero() || s.retryAt.Before(at) {
		m.link.askAt = s.retryAt
	}
	m.do(tellError{s, err})
}

// unsubscribed: the answer to unsubscribe, or (id 0) the server ended it.
func (m *machine) unsubscribed(id uint32, f *clientv1.Unsubscribed) {
	if id != 0 {
		delete(m.open, id)
		return
	}
	s := m.subs[f.Channel]
	if s == nil || s.phase == idle || s.phase == asked {
		return
	}
	var err error = ErrUnsubscribed
	if f.Error != nil {
		err = newError(f.Error)
	}
	m.remove(s)
	m.do(tellEnd{s, err})
}

// event hands over what is new. What is at or below the position was handed over.
func (m *machine) event(e *clientv1.Event) {
	s := m.subs[e.Channel]
	if s == nil || s.phase != live || e.Offset <= s.pos.Offset {
		return
	}
	before := s.pos
	s.pos.Offset = e.Offset
	if e.Offset > before.Offset+1 {
		// No server should do this; but what is lost is told, always.
		m.do(tellGap{s, Gap{From: before, Position: Position{before.Epoch, e.Offset - 1}, Reason: "skipped"}})
	}
	m.do(tellEvent{s, newEvent(s.channel, s.pos.Epoch, e)})
}

// gap: the server let events go, or began a new epoch.
func (m *machine) gap(g *clientv1.Gap) {
	s := m.subs[g.Channel]
	if s == nil || s.phase != live {
		return
	}
	before, after := s.pos, Position{g.Epoch, g.Offset}
	if after.Epoch == before.Epoch && after.Offset <= before.Offset {
		return // nothing that this client lacks
	}
	s.pos = after
	m.do(tellGap{s, Gap{before, after, g.Reason, millis(g.ReloadAfterMs)}})
}
