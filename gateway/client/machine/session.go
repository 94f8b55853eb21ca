package machine

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// greet sends connect with as many subscriptions as one frame takes; connected
// is followed by the rest. Those that want the newest n events are among the rest:
// connect has no `last`.
func (m *Machine) greet(l *link) {
	c := &clientv1.Connect{Token: m.token, Ticket: m.ticket, Client: m.cfg.Name}
	if attempt := uint64(l.n); m.cfg.Foreign == nil {
		c.Attempt = &attempt
	}
	f := &clientv1.ClientFrame{Id: ^uint32(0), Frame: &clientv1.ClientFrame_Connect{Connect: c}}
	size := len(wire.AppendClient(nil, f)) + len(`,"subscriptions":[]`)
	l.greeted = nil
	for _, s := range m.inOrder() {
		if s.last > 0 && !s.known {
			continue
		}
		ask := s.request()
		if size += askSize(ask); size > l.maxFrame {
			break
		}
		l.greeted = append(l.greeted, greeted{s, s.position()})
		c.Subscriptions = append(c.Subscriptions, ask)
	}
	l.connectID = m.command(l, &command{kind: cmdConnect}, f)
}

// greeted is a subscription named in connect, and the position told for it.
type greeted struct {
	sub *Subscription
	pos Position
}

// Frame is one frame from the server.
func (m *Machine) Frame(now time.Time, n int, f *clientv1.ServerFrame) {
	l := m.find(n)
	if l == nil || l.gone {
		return
	}
	l.heard = true
	l.pongBy = time.Time{}
	switch b := f.Frame.(type) {
	case *clientv1.ServerFrame_Connected:
		m.connected(now, l, f.Id, b.Connected)
	case *clientv1.ServerFrame_Subscribed:
		m.subscribed(now, l, f.Id, b.Subscribed)
	case *clientv1.ServerFrame_Unsubscribed:
		m.unsubscribed(l, f.Id, b.Unsubscribed)
	case *clientv1.ServerFrame_Event:
		m.event(l, b.Event)
	case *clientv1.ServerFrame_Gap:
		m.gap(l, b.Gap)
	case *clientv1.ServerFrame_Refreshed:
		delete(l.open, f.Id)
		m.newTicket(l, b.Refreshed.Ticket)
		m.expires(now, l, b.Refreshed.ExpiresInMs)
	case *clientv1.ServerFrame_Pong:
		if b.Pong.RetryWindowMs > 0 {
			l.retryWindow = millis(b.Pong.RetryWindowMs)
		}
		m.newTicket(l, b.Pong.Ticket)
		m.answer(l, f)
	case *clientv1.ServerFrame_Reconnect:
		m.reconnect(now, l, b.Reconnect)
	case *clientv1.ServerFrame_Busy:
		m.stats.Busy++
		at := now.Add(min(millis(b.Busy.RetryAfterMs), serverWaitMax))
		l.verdict = verdict{code: wire.CloseBusy, reason: b.Busy.Scope, at: at, url: b.Busy.Url, pass: pass(b.Busy.Ticket)}
	case *clientv1.ServerFrame_Error:
		m.failed(now, l, f, b.Error)
	default: // published, history, presence; a type of a later version has no command
		m.answer(l, f)
	}
	m.tryEndMove(now)
}

func (m *Machine) connected(now time.Time, l *link, id uint32, c *clientv1.Connected) {
	if l.phase != greeting || id != l.connectID {
		return
	}
	delete(l.open, id)
	l.phase, l.upSince = up, now
	l.pingInterval = orDefault(millis(c.PingIntervalMs), defaultPingInterval)
	l.pongTimeout = orDefault(millis(c.PongTimeoutMs), defaultPongTimeout)
	l.retryWindow = millis(c.RetryWindowMs)
	l.nextPing = now.Add(m.cfg.Random(l.pingInterval))
	l.node, l.region = c.Node, c.Region
	if c.MaxFrameBytes > 0 {
		l.maxFrame = int(c.MaxFrameBytes)
	}
	if l == m.ahead {
		m.arrive(now, l)
	}
	m.session = c.Session
	m.keepTicket(c.Ticket)
	m.stats.Connects++
	if c.Resumed {
		m.stats.Resumes++
	}
	m.expires(now, l, c.ExpiresInMs)
	m.setState(Connected, nil)
	m.welcome(now, l, c.Subscriptions)
	m.askIdle(now)
	m.sendWaiting()
}

// welcome applies what connected says about channels.
func (m *Machine) welcome(now time.Time, l *link, entries []*clientv1.SubscriptionEntry) {
	for _, g := range l.greeted {
		if m.subs[g.sub.channel] == g.sub {
			g.sub.at = stream{phase: asked, askID: l.connectID, asked: g.pos}
		} else {
			// Ended since. What the server has of it belongs to no later one.
			m.sendUnsubscribe(l, g.sub.channel)
			entries = without(entries, g.sub.channel)
		}
	}
	l.greeted = nil
	for _, e := range entries {
		s := m.subs[e.Channel]
		if s == nil && e.Error == nil && m.cfg.Joined != nil {
			if s = m.cfg.Joined(e.Channel); s != nil {
				m.keep(s)
				s.at = stream{phase: asked, askID: l.connectID}
			}
		}
		if s != nil && s.at.phase == asked && s.at.askID == l.connectID {
			m.entry(now, s, e)
		}
	}
	for _, s := range m.subs {
		if s.at.phase == asked && s.at.askID == l.connectID {
			s.at.phase = idle // it was not answered: ask once more
		}
	}
}

func without(entries []*clientv1.SubscriptionEntry, channel string) (out []*clientv1.SubscriptionEntry) {
	for _, e := range entries {
		if e.Channel != channel {
			out = append(out, e)
		}
	}
	return out
}

// newTicket takes a ticket from the connection that serves.
func (m *Machine) newTicket(l *link, ticket string) {
	if l == m.link {
		m.keepTicket(ticket)
	}
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}

// failed: an error, as the answer to a command or about the connection.
func (m *Machine) failed(now time.Time, l *link, f *clientv1.ServerFrame, e *clientv1.Error) {
	if e.Close != nil {
		l.verdict = verdict{code: wire.CloseCode(*e.Close), reason: newError(e).Error()}
		if e.RetryAfterMs != nil {
			l.verdict.at = now.Add(min(millis(*e.RetryAfterMs), serverWaitMax))
		}
	}
	c := l.open[f.Id]
	if f.Id == 0 || c == nil {
		return
	}
	delete(l.open, f.Id)
	switch c.kind {
	case cmdConnect:
		m.notWelcome(now, l, e)
	case cmdSubscribe:
		for _, s := range c.subs {
			if l == m.link && s.at.phase == asked && s.at.askID == f.Id {
				m.subscriptionFailed(now, s, e)
			}
		}
	case cmdRefresh:
		m.refreshLater(now, l)
	case cmdCall:
		m.finish(c.call, nil, newError(e))
	}
}

// notWelcome: connect was refused: neither ticket nor token is good. Without a close,
// one more connect may follow on this connection, with a token from the provider,
// which is asked once.
func (m *Machine) notWelcome(now time.Time, l *link, e *clientv1.Error) {
	stale := false
	switch e.Code {
	case clientv1.ErrorCode_ERROR_CODE_EXPIRED, clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, clientv1.ErrorCode_ERROR_CODE_REVOKED:
		stale = true
	}
	if stale {
		m.ticket = ""
	}
	if l.phase == up || e.Close != nil {
		return // the close follows
	}
	if stale && m.cfg.HasProvider && !l.askedToken && m.cfg.Foreign == nil {
		l.askedToken, l.wantsToken = true, true
		m.ask()
		return
	}
	end := loss{err: newError(e)}
	if e.RetryAfterMs != nil {
		end.at = now.Add(min(millis(*e.RetryAfterMs), serverWaitMax))
	}
	m.drop(now, l, end)
}
