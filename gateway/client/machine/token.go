package machine

import (
	"errors"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// ask calls the provider unless it is being asked.
func (m *Machine) ask() {
	if !m.asking {
		m.asking = true
		m.stats.TokenCalls++
		m.do(AskToken{})
	}
}

// Token is the provider's answer.
func (m *Machine) Token(now time.Time, token string, err error) {
	m.asking = false
	if m.state == Disconnected {
		return
	}
	if err == nil && token == "" {
		err = ErrNoToken
	}
	if errors.Is(err, ErrNoToken) {
		m.Stop(err)
		return
	}
	if err != nil {
		m.noToken(now, err)
		return
	}
	m.token, m.needToken = token, false
	if a := m.ahead; a != nil && a.wantsToken {
		a.wantsToken = false
		m.greet(a)
	}
	switch l := m.link; {
	case l == nil:
		m.attempt(now)
	case l.wantsToken:
		l.wantsToken = false
		m.greet(l)
	case l.wantsRefresh:
		l.wantsRefresh = false
		m.command(l, &command{kind: cmdRefresh}, &clientv1.ClientFrame{
			Frame: &clientv1.ClientFrame_Refresh{Refresh: &clientv1.Refresh{Token: token}},
		})
	}
}

// noToken: the provider failed this time.
func (m *Machine) noToken(now time.Time, err error) {
	if a := m.ahead; a != nil && a.wantsToken {
		m.needToken = true
		m.drop(now, a, loss{err: err})
	}
	switch l := m.link; {
	case l == nil:
		m.next.at = now.Add(m.backoff(&m.failures))
		m.setState(m.state, err)
	case l.wantsToken:
		m.needToken = true
		m.drop(now, l, loss{err: err})
	case l.wantsRefresh:
		l.wantsRefresh = false
		m.refreshLater(now, l)
	case m.needToken && l.leave != nil:
		l.leave.at = now.Add(m.backoff(&l.leave.failures))
	}
}

// refresh asks for new credentials while the old ones are good.
func (m *Machine) refresh(now time.Time) {
	if l := m.link; !l.refreshAt.IsZero() && !now.Before(l.refreshAt) {
		l.refreshAt, l.wantsRefresh = time.Time{}, true
		m.ask()
	}
}

// expires plans the refresh at 50 to 80 % of what is left.
func (m *Machine) expires(now time.Time, l *link, inMS *uint64) {
	l.expiresAt, l.refreshAt = time.Time{}, time.Time{}
	if inMS == nil || !m.cfg.HasProvider {
		return
	}
	left := millis(*inMS)
	l.expiresAt = now.Add(left)
	l.refreshAt = now.Add(left/2 + m.cfg.Random(max(left*3/10, 1)))
}

// refreshLater tries again halfway to the end, as long as that makes sense; at the
// end the server asks for credentials itself.
func (m *Machine) refreshLater(now time.Time, l *link) {
	if left := l.expiresAt.Sub(now); !l.expiresAt.IsZero() && left > 2*time.Second {
		l.refreshAt = now.Add(left / 2)
	}
}
