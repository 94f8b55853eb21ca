package machine

import (
	"errors"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

var ErrSameNode = errors.New("the move led to the same node")

const (
	moveTime = 30 * time.Second // an edge's deadline, if it told none
	lastTime = 5 * time.Second  // the old connection after the last takeover
)

// move is what a `reconnect` asked for: the plan of the next attempt, which changes
// when one fails, and what all attempts have in common.
type move struct {
	plan
	reason   string
	heardAt  time.Time
	deadline time.Time // of the edge that is left; no attempt begins after it
	failures int       // of backoff
	tries    int
	tried    bool // an attempt by this plan has begun: its end makes the next plan
}

// replan is what the end of an attempt says of the next one. A `reconnect` that came
// meanwhile knows more.
func (mv *move) replan(p plan) {
	if mv.tried {
		mv.plan, mv.tried = p, false
	}
}

// reconnect: the edge of l wants this client elsewhere. Said again, it changes the
// plan; an attempt under way goes on, and if it fails the new plan counts.
func (m *Machine) reconnect(now time.Time, l *link, r *clientv1.Reconnect) {
	if l == m.old || m.cfg.Foreign != nil {
		return
	}
	mv := &move{reason: r.Reason, heardAt: now, deadline: now.Add(moveTime)}
	if before := l.leave; before != nil {
		mv.heardAt, mv.failures, mv.tries = before.heardAt, before.failures, before.tries
	}
	if r.DeadlineMs > 0 {
		mv.deadline = now.Add(millis(r.DeadlineMs))
	}
	mv.plan = plan{at: now.Add(min(millis(r.AfterMs), serverWaitMax)), told: true, url: m.hint(l, r.Url)}
	l.leave = mv
	l.verdict = verdict{code: wire.CloseShutdown, reason: r.Reason, move: true}
	m.keepTicket(r.Ticket)
}

// moveAt is when the next attempt to move is due; zero: none is.
func (m *Machine) moveAt() time.Time {
	l := m.link
	if l == nil || l.phase != up || l.leave == nil || m.ahead != nil || m.old != nil || m.needToken && m.asking {
		return time.Time{}
	}
	if mv := l.leave; mv.at.Before(mv.deadline) {
		return mv.at
	}
	return time.Time{} // too late: the edge closes, and then comes the usual attempt
}

// moveOn begins the attempt to move if it is time.
func (m *Machine) moveOn(now time.Time) {
	at := m.moveAt()
	if at.IsZero() || now.Before(at) {
		return
	}
	if m.needToken {
		m.ask()
		return
	}
	mv := m.link.leave
	mv.tries++
	m.ahead = m.dial(now, mv.plan, mv.failures, true)
	mv.pass = "" // good once
	mv.tried = true
}

// moveFailed: the attempt is over, the connection that was to be left lives on.
func (m *Machine) moveFailed(now time.Time, l *link, e loss) {
	m.ahead = nil
	m.stats.MoveFailures++
	m.moveAgain(now, l, e)
	m.resumeOld(now)
}

// moveAgain plans the next attempt after link l ended by e.
func (m *Machine) moveAgain(now time.Time, l *link, e loss) {
	m.cutOff(l)
	mv := m.link.leave
	next := plan{at: e.at, told: true, url: m.hint(l, l.verdict.url), pass: l.verdict.pass}
	switch {
	case l.verdict.move:
		next.url, next.pass = l.leave.url, l.leave.pass
	case next.url == "" && l.verdict.code == wire.CloseBusy && l.hinted:
		next.url = l.url // it lives and told when
	}
	if !e.at.After(now) {
		if e.code.Reaction() == wire.BackOffFromCap {
			mv.failures = max(mv.failures, capFailures)
		}
		next.at, next.told = now.Add(m.backoff(&mv.failures)), false
	}
	mv.replan(next)
	m.leave(now, l)
	if e.code.Reaction() == wire.NewCredentials && m.cfg.HasProvider {
		m.needToken = true
		m.ask()
	}
	m.do(TellMove{Move{Reason: mv.reason, From: m.link.node, Attempts: mv.tries, Took: now.Sub(mv.heardAt), Err: e.err}})
}

// resumeOld sends the serving connection what waited for the outcome of a move.
func (m *Machine) resumeOld(now time.Time) {
	l := m.link
	for _, channel := range l.unsubscribing {
		m.sendUnsubscribe(l, channel)
	}
	l.unsubscribing = nil
	m.askIdle(now)
	m.sendWaiting()
}

// arrive: the other edge said `connected`. From here on it serves; the old connection
// delivers until every channel is taken over.
func (m *Machine) arrive(now time.Time, l *link) {
	old := m.link
	m.count(now, old)
	m.old, m.link, m.ahead = old, l, nil
	old.until = old.leave.deadline
	if at := now.Add(lastTime); old.until.Before(at) {
		old.until = at
	}
	old.taken = false
	for _, s := range m.subs {
		if s.at.phase == live {
			s.was, s.untaken = s.at, true
			m.untaken++
		}
		s.at = stream{}
	}
	if l.sameNode(old) {
		m.sameNode(now, old, l)
	}
}

func (l *link) sameNode(other *link) bool { return l.node != "" && l.node == other.node }

// sameNode: the move led back to the edge that wants to be left. The new connection is
// the one that counts there now, so it takes over all the same, and moves on later.
func (m *Machine) sameNode(now time.Time, old, l *link) {
	m.stats.MoveFailures++
	again := *old.leave
	again.replan(plan{at: now.Add(m.backoff(&again.failures))})
	l.leave = &again
	m.do(TellMove{Move{
		Reason: again.reason, From: old.node, Attempts: again.tries, Took: now.Sub(again.heardAt), Err: ErrSameNode,
	}})
}

// took notes that a channel is taken over: whatever the old connection could still
// bring comes from the new one as well.
func (m *Machine) took(s *Subscription) {
	st := &s.at
	if !s.untaken || st.phase != live || len(st.held) > 0 || st.epoch != s.pos.Epoch {
		return
	}
	if st.target.Epoch == s.pos.Epoch && st.target.Offset > s.pos.Offset {
		return
	}
	m.oldDone(s)
}

// oldDone: nothing is expected from the old connection for this channel.
func (m *Machine) oldDone(s *Subscription) {
	if s.untaken {
		s.untaken = false
		m.untaken--
	}
}

// tryEndMove ends the move when the old connection has nothing left to do, or has had
// its time.
func (m *Machine) tryEndMove(now time.Time) {
	old := m.old
	if old == nil {
		return
	}
	if m.untaken == 0 {
		if !old.taken {
			old.taken = true
			if at := now.Add(lastTime); at.Before(old.until) {
				old.until = at
			}
		}
		if !old.asking() {
			m.endMove(now)
			return
		}
	}
	if !now.Before(old.until) {
		m.endMove(now)
	}
}

// asking: somebody waits for an answer on it.
func (l *link) asking() bool {
	for _, c := range l.open {
		if c.call != nil && !c.call.over {
			return true
		}
	}
	return false
}

// endMove: the old connection is closed, by whomever.
func (m *Machine) endMove(now time.Time) {
	old, mv := m.old, m.old.leave
	m.old, m.untaken = nil, 0
	if !old.gone {
		m.do(DropLink{old.n, wire.CloseNormal})
	}
	m.cutOff(old)
	for _, s := range m.subs {
		interrupted := s.untaken && s.at.phase == pending
		s.untaken = false
		m.forget(&s.was)
		m.pump(s)
		if interrupted {
			m.do(TellSubscribed{s, Subscribed{Pending: true}})
		}
	}
	if !m.link.sameNode(old) {
		m.stats.Moves++
		m.do(TellMove{Move{
			Reason: mv.reason, From: old.node, To: m.link.node, Attempts: mv.tries, Took: m.link.upSince.Sub(mv.heardAt),
		}})
	}
	m.sendWaiting()
}

// fallBack: the new connection was lost before the old one was left. The old one has
// delivered all the time and serves again.
func (m *Machine) fallBack(now time.Time, l *link, e loss) {
	m.stats.FallBacks++
	old := m.old
	m.link, m.old, m.untaken = old, nil, 0
	m.moveAgain(now, l, e)
	for _, s := range m.inOrder() {
		m.forget(&s.at)
		s.at, s.was, s.untaken = s.was, stream{}, false
		m.pump(s)
		if s.at.phase == idle {
			old.unsubscribing = append(old.unsubscribing, s.channel) // what it may know of an earlier question
		}
	}
	m.resumeOld(now)
}

// promote: the connection was lost while another was being opened. That is now the
// attempt to come back.
func (m *Machine) promote(now time.Time, l *link, e loss) {
	m.cutOff(l)
	m.count(now, l)
	if e.code == wire.CloseSlowConsumer {
		m.stableTime = stableUpSlow
	}
	m.link, m.ahead = m.ahead, nil
	m.offStreams()
	m.setState(Reconnecting, e.err)
}
