package machine

import (
	"errors"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

var (
	errAttemptTime = errors.New("no `connected` before the deadline of the attempt")
	errPongTime    = errors.New("no answer to a ping")
)

// phase of a link.
type phase uint8

const (
	opening  phase = iota // dial and handshake
	greeting              // connect was sent
	up                    // connected was read
)

// link is one attempt and the connection that it may become.
type link struct {
	n        int
	url      string
	hinted   bool // the url came from a server
	phase    phase
	gone     bool      // it was reported to have ended, or dropped
	deadline time.Time // of the attempt
	heard    bool      // Spillway answered on it
	verdict  verdict
	open     map[uint32]*command // sent on it and not answered
	leave    *move               // it was told to go elsewhere

	connectID  uint32
	greeted    []greeted // named in connect
	askedToken bool      // for this link, once
	wantsToken bool      // connect is repeated when the token is here

	// from connected on
	upSince       time.Time
	pingInterval  time.Duration
	pongTimeout   time.Duration
	retryWindow   time.Duration
	maxFrame      int
	nextPing      time.Time
	pongBy        time.Time // zero: no ping is unanswered
	refreshAt     time.Time // zero: credentials do not end
	wantsRefresh  bool      // refresh is sent when the token is here
	expiresAt     time.Time
	askAt         time.Time // zero: no subscription was refused for a while
	node          string
	region        string
	unsubscribing []string  // channels that it carries for nobody, to be told if it serves (again)
	until         time.Time // as m.old: closed at the latest
	taken         bool      // as m.old: every channel is taken over
}

// verdict is the last frame of a link that said how it ends; the close code only
// repeats it, and proxies eat close codes.
type verdict struct {
	code   wire.CloseCode // 0: none was read
	reason string
	move   bool      // a `reconnect`: the slot stands in leave
	at     time.Time // the client's slot; zero: none was told
	url    string
	pass   string
}

// loss is how a link ended.
type loss struct {
	code wire.CloseCode // of the close frame; 0: none
	own  bool           // the cause is on this side: ping timed out, attempt too slow
	at   time.Time      // a Refusal told when to come back
	err  error
}

// attempt opens the next link if it is time.
func (m *Machine) attempt(now time.Time) {
	if now.Before(m.next.at) {
		return
	}
	if m.needToken {
		m.ask()
		return
	}
	m.link = m.dial(now, m.next, m.failures, false)
	m.next = plan{at: m.next.at}
}

// dial begins a link by plan: with its pass, else with the session's ticket.
func (m *Machine) dial(now time.Time, p plan, failures int, move bool) *link {
	m.links++
	m.stats.Attempts++
	limit := min(attemptTimeMax, attemptTime<<min(failures, 8))
	if f := m.cfg.Foreign; f != nil {
		limit = f.AttemptTime
	}
	l := &link{n: m.links, url: m.cfg.URLs[m.home], deadline: now.Add(limit), maxFrame: wire.MaxClientFrameBytes}
	if p.url != "" {
		l.url, l.hinted = p.url, true
	}
	offer := m.ticket
	if p.pass != "" {
		offer = p.pass
	}
	m.do(OpenLink{l.n, l.url, l.hinted, move, offer, p.pass != "", limit})
	return l
}

// Opened: the handshake is done.
func (m *Machine) Opened(_ time.Time, n int) {
	if l := m.find(n); l != nil && l.phase == opening {
		l.phase = greeting
		m.greet(l)
	}
}

// Refused: the handshake failed.
func (m *Machine) Refused(now time.Time, n int, r Refusal) {
	l := m.find(n)
	if l == nil {
		return
	}
	l.heard, l.gone = r.Ours, true
	if r.Malformed {
		m.ticket = "" // it is the one thing in a handshake that changes
	}
	e := loss{err: r.Err}
	switch {
	case r.WaitIsTold && r.Ours:
		e.at = now.Add(min(r.Wait, serverWaitMax))
	case r.WaitIsTold:
		wait := min(r.Wait, serverWaitMax)
		e.at = now.Add(wait + m.cfg.Random(max(wait, time.Second)))
	}
	m.ended(now, l, e)
}

// Lost: the connection ended. code 0: without a close frame.
func (m *Machine) Lost(now time.Time, n int, code wire.CloseCode, err error) {
	if l := m.find(n); l != nil {
		l.gone = true
		m.ended(now, l, loss{code: code, err: err})
	}
}

// drop ends a link from this side.
func (m *Machine) drop(now time.Time, l *link, e loss) {
	l.gone = true
	code := wire.CloseNormal
	if e.err == errPongTime {
		code = wire.ClosePingTimeout
	}
	m.do(DropLink{l.n, code})
	m.ended(now, l, e)
}

// ended decides what follows the end of a link.
func (m *Machine) ended(now time.Time, l *link, e loss) {
	v := l.verdict
	switch {
	case v.code != 0:
		e.code, e.err = v.code, &CloseError{v.code, v.reason}
		if v.move {
			e.at = l.leave.at
		} else if !v.at.IsZero() {
			e.at = v.at
		}
	case e.code != 0 && e.err == nil:
		e.err = &CloseError{Code: e.code}
	}
	if l.phase != up {
		m.stats.Failures++
	}
	switch {
	case e.code.Reaction() == wire.Stop && m.cfg.Foreign == nil:
		m.Stop(e.err)
	case l == m.old:
		m.endMove(now)
	case l == m.ahead:
		m.moveFailed(now, l, e)
	case m.old != nil:
		m.fallBack(now, l, e)
	case m.ahead != nil:
		m.promote(now, l, e)
	default:
		m.down(now, l, e)
	}
}

// down: there is no connection any more, and none is being opened.
func (m *Machine) down(now time.Time, l *link, e loss) {
	m.cutOff(l)
	m.link = nil
	m.offStreams()
	m.count(now, l)
	m.next = m.follow(now, l, e)
	if v := l.verdict; v.move {
		m.failures = max(m.failures, l.leave.failures)
	}
	if m.cfg.Foreign != nil {
		m.needToken = m.cfg.HasProvider
		m.setState(m.without(), e.err)
		return
	}
	m.leave(now, l)
	switch e.code {
	case wire.CloseSlowConsumer:
		m.stableTime = stableUpSlow
	case wire.CloseSuperseded:
		m.ticket, m.session = "", ""
	}
	m.setState(m.without(), e.err)
	if e.code.Reaction() == wire.NewCredentials && m.cfg.HasProvider {
		m.needToken = true
		m.ask()
	}
}

// without is the state once the connection is gone.
func (m *Machine) without() State {
	if m.state == Connected {
		return Reconnecting
	}
	return m.state
}

// follow plans the attempt after the end of the only link.
func (m *Machine) follow(now time.Time, l *link, e loss) plan {
	if f := m.cfg.Foreign; f != nil {
		m.failures++
		return plan{at: now.Add(f.Pause(m.failures - 1)), told: true}
	}
	p := plan{at: m.slot(now, l, e), told: !e.at.IsZero()}
	if v := l.verdict; v.move {
		p.url, p.pass = l.leave.url, l.leave.pass
	} else {
		p.url, p.pass = m.hint(l, v.url), v.pass
	}
	return p
}
