package client

import (
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// greet sends connect with as many subscriptions as one frame takes; connected
// is followed by the rest. Those that want the newest n events are among the rest:
// connect has no `last`.
func (m *machine) greet() {
	l := m.link
	c := &clientv1.Connect{Token: m.token, Client: m.name}
	f := &clientv1.ClientFrame{Id: ^uint32(0), Frame: &clientv1.ClientFrame_Connect{Connect: c}}
	size := len(wire.AppendClient(nil, f)) + len(`,"subscriptions":[]`)
	for _, s := range m.inOrder() {
		s.phase = idle
		if s.last > 0 && !s.known {
			continue
		}
		ask := s.request()
		if size += askSize(ask); size > l.maxFrame {
			break
		}
		s.phase = asked
		c.Subscriptions = append(c.Subscriptions, ask)
	}
	l.connectID = m.command(&command{kind: cmdConnect}, f)
	for _, s := range m.subs {
		if s.phase == asked {
			s.askID = l.connectID
		}
	}
}

// frame is one frame from the server.
func (m *machine) frame(now time.Time, n int, f *clientv1.ServerFrame) {
	l := m.link
	if l == nil || l.n != n {
		return
	}
	l.heard = true
	m.alive(n)
	switch b := f.Frame.(type) {
	case *clientv1.ServerFrame_Connected:
		m.connected(now, f.Id, b.Connected)
	case *clientv1.ServerFrame_Subscribed:
		m.subscribed(now, f.Id, b.Subscribed)
	case *clientv1.ServerFrame_Unsubscribed:
		m.unsubscribed(f.Id, b.Unsubscribed)
	case *clientv1.ServerFrame_Event:
		m.event(b.Event)
	case *clientv1.ServerFrame_Gap:
		m.gap(b.Gap)
	case *clientv1.ServerFrame_Refreshed:
		delete(m.open, f.Id)
		m.expires(now, b.Refreshed.ExpiresInMs)
	case *clientv1.ServerFrame_Pong:
		if b.Pong.RetryWindowMs > 0 {
			l.retryWindow = millis(b.Pong.RetryWindowMs)
		}
		m.answer(f)
	case *clientv1.ServerFrame_Reconnect:
		// Moving before the end comes later; until then the slot is for after it.
		at := now.Add(millis(b.Reconnect.AfterMs))
		l.verdict = verdict{wire.CloseShutdown, b.Reconnect.Reason, at, b.Reconnect.Url}
	case *clientv1.ServerFrame_Busy:
		at := now.Add(min(millis(b.Busy.RetryAfterMs), serverWaitMax))
		l.verdict = verdict{wire.CloseBusy, b.Busy.Scope, at, b.Busy.Url}
	case *clientv1.ServerFrame_Error:
		m.failed(now, f, b.Error)
	default: // published, history, presence; a type of a later version has no command
		m.answer(f)
	}
}

func (m *machine) connected(now time.Time, id uint32, c *clientv1.Connected) {
	l := m.link
	if l.phase == up || id != l.connectID {
		return
	}
	delete(m.open, id)
	l.phase, l.upSince = up, now
	l.pingInterval = orDefault(millis(c.PingIntervalMs), defaultPingInterval)
	l.pongTimeout = orDefault(millis(c.PongTimeoutMs), defaultPongTimeout)
	l.retryWindow = millis(c.RetryWindowMs)
	l.nextPing = now.Add(m.random(l.pingInterval))
	l.node, l.region, m.session = c.Node, c.Region, c.Session
	if c.MaxFrameBytes > 0 {
		l.maxFrame = int(c.MaxFrameBytes)
	}
	m.expires(now, c.ExpiresInMs)
	m.setState(Connected, nil)
	for _, e := range c.Subscriptions {
		s := m.subs[e.Channel]
		if s == nil && e.Error == nil && m.joined != nil {
			if s = m.joined(e.Channel); s != nil {
				m.keep(s)
				s.phase, s.askID = asked, id
			}
		}
		if s != nil && s.phase == asked && s.askID == id {
			m.entry(now, s, e)
		}
	}
	for _, s := range m.subs {
		if s.phase == asked && s.askID == id {
			s.phase = idle // it was not answered: ask once more
		}
	}
	m.askIdle(now)
	m.sendWaiting()
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}

// failed: an error, as the answer to a command or about the connection.
func (m *machine) failed(now time.Time, f *clientv1.ServerFrame, e *clientv1.Error) {
	l := m.link
	if e.Close != nil {
		l.verdict = verdict{code: wire.CloseCode(*e.Close), reason: newError(e).Error()}
		if e.RetryAfterMs != nil {
			l.verdict.at = now.Add(min(millis(*e.RetryAfterMs), serverWaitMax))
		}
	}
	c := m.open[f.Id]
	if f.Id == 0 || c == nil {
		return
	}
	delete(m.open, f.Id)
	switch c.kind {
	case cmdConnect:
		m.notWelcome(now, e)
	case cmdSubscribe:
		for _, s := range c.subs {
			if s.phase == asked && s.askID == f.Id {
				m.subscriptionFailed(now, s, e)
			}
		}
	case cmdRefresh:
		m.refreshLater(now)
	case cmdCall:
		m.finish(c.call, nil, newError(e))
	}
}

// notWelcome: connect was refused. Without a close, one more connect may follow on
// this connection, with a token from the provider, which is asked once.
func (m *machine) notWelcome(now time.Time, e *clientv1.Error) {
	l := m.link
	if l.phase == up || e.Close != nil {
		return // the close follows
	}
	stale := e.Code == clientv1.ErrorCode_ERROR_CODE_EXPIRED || e.Code == clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED
	if stale && m.hasProvider && !l.askedToken {
		l.askedToken, l.wantsToken = true, true
		m.ask()
		return
	}
	end := loss{err: newError(e)}
	if e.RetryAfterMs != nil {
		end.at = now.Add(min(millis(*e.RetryAfterMs), serverWaitMax))
	}
	m.drop(now, end)
}

// drop ends the link from this side.
func (m *machine) drop(now time.Time, e loss) {
	m.do(dropLink{m.link.n, wire.CloseNormal})
	m.ended(now, e)
}
