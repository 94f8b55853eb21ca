package client

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
	at   time.Time      // a refusal told when to come back
	err  error
}

// attempt opens the next link if it is time.
func (m *machine) attempt(now time.Time) {
	if now.Before(m.next.at) {
		return
	}
	if m.needToken {
		m.ask()
		return
	}
	m.link = m.dial(now, m.next, m.failures)
	m.next = plan{at: m.next.at}
}

// dial begins a link by plan: with its pass, else with the session's ticket.
func (m *machine) dial(now time.Time, p plan, failures int) *link {
	m.links++
	m.stats.Attempts++
	limit := min(attemptTimeMax, attemptTime<<min(failures, 8))
	l := &link{n: m.links, url: m.urls[m.home], deadline: now.Add(limit), maxFrame: wire.MaxClientFrameBytes}
	if p.url != "" {
		l.url, l.hinted = p.url, true
	}
	offer := m.ticket
	if p.pass != "" {
		offer = p.pass
	}
	m.do(openLink{l.n, l.url, offer, limit})
	return l
}

// opened: the handshake is done.
func (m *machine) opened(_ time.Time, n int) {
	if l := m.find(n); l != nil && l.phase == opening {
		l.phase = greeting
		m.greet(l)
	}
}

// refusal is a handshake that failed.
type refusal struct {
	err        error
	ours       bool          // the answer had our JSON body
	wait       time.Duration // retry_after_ms, or Retry-After if not ours
	waitIsTold bool
	malformed  bool // what we sent was the cause, for all that we know
}

func (m *machine) refused(now time.Time, n int, r refusal) {
	l := m.find(n)
	if l == nil {
		return
	}
	l.heard, l.gone = r.ours, true
	if r.malformed {
		m.ticket = "" // it is the one thing in a handshake that changes
	}
	e := loss{err: r.err}
	switch {
	case r.waitIsTold && r.ours:
		e.at = now.Add(min(r.wait, serverWaitMax))
	case r.waitIsTold:
		wait := min(r.wait, serverWaitMax)
		e.at = now.Add(wait + m.random(max(wait, time.Second)))
	}
	m.ended(now, l, e)
}

// lost: the connection ended. code 0: without a close frame.
func (m *machine) lost(now time.Time, n int, code wire.CloseCode, err error) {
	if l := m.find(n); l != nil {
		l.gone = true
		m.ended(now, l, loss{code: code, err: err})
	}
}

// drop ends a link from this side.
func (m *machine) drop(now time.Time, l *link, e loss) {
	l.gone = true
	code := wire.CloseNormal
	if e.err == errPongTime {
		code = wire.ClosePingTimeout
	}
	m.do(dropLink{l.n, code})
	m.ended(now, l, e)
}

// ended decides what follows the end of a link.
func (m *machine) ended(now time.Time, l *link, e loss) {
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
	case e.code.Reaction() == wire.Stop:
		m.stop(e.err)
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
func (m *machine) down(now time.Time, l *link, e loss) {
	m.cutOff(l)
	m.link = nil
	m.offStreams()
	m.count(now, l)
	m.next = m.follow(now, l, e)
	if v := l.verdict; v.move {
		m.failures = max(m.failures, l.leave.failures)
	}
	m.leave(now, l)
	switch e.code {
	case wire.CloseSlowConsumer:
		m.stableTime = stableUpSlow
	case wire.CloseSuperseded:
		m.ticket, m.session = "", ""
	}
	m.setState(m.without(), e.err)
	if e.code.Reaction() == wire.NewCredentials && m.hasProvider {
		m.needToken = true
		m.ask()
	}
}

// without is the state once the connection is gone.
func (m *machine) without() State {
	if m.state == Connected {
		return Reconnecting
	}
	return m.state
}

// follow plans the attempt after the end of the only link.
func (m *machine) follow(now time.Time, l *link, e loss) plan {
	p := plan{at: m.slot(now, l, e), told: !e.at.IsZero()}
	if v := l.verdict; v.move {
		p.url, p.pass = l.leave.url, l.leave.pass
	} else {
		p.url, p.pass = m.hint(l, v.url), v.pass
	}
	return p
}
