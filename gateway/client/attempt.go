package client

import (
	"errors"
	"strings"
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
	phase    phase
	deadline time.Time // of the attempt
	heard    bool      // Spillway answered on it
	verdict  verdict

	connectID  uint32
	askedToken bool // for this link, once
	wantsToken bool // connect is repeated when the token is here

	// from connected on
	upSince      time.Time
	pingInterval time.Duration
	pongTimeout  time.Duration
	retryWindow  time.Duration
	maxFrame     int
	nextPing     time.Time
	pongBy       time.Time // zero: no ping is unanswered
	refreshAt    time.Time // zero: credentials do not end
	expiresAt    time.Time
	askAt        time.Time // zero: no subscription was refused for a while
	node         string
	region       string
}

// verdict is the last frame of a link that said how it ends; the close code only
// repeats it, and proxies eat close codes.
type verdict struct {
	code   wire.CloseCode // 0: none was read
	reason string
	at     time.Time // the client's slot; zero: none was told
	url    string
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
	if now.Before(m.nextAt) {
		return
	}
	if m.needToken {
		m.ask()
		return
	}
	m.links++
	limit := min(attemptTimeMax, attemptTime<<min(m.failures, 8))
	m.link = &link{n: m.links, url: m.urls[m.home], deadline: now.Add(limit)}
	if m.nextURL != "" {
		m.link.url, m.nextURL = m.nextURL, ""
	}
	m.do(openLink{m.links, m.link.url, limit})
}

// opened: the handshake is done.
func (m *machine) opened(now time.Time, n int) {
	if m.link == nil || m.link.n != n || m.link.phase != opening {
		return
	}
	m.link.phase = greeting
	m.link.maxFrame = wire.MaxClientFrameBytes
	m.greet()
}

// refusal is a handshake that failed.
type refusal struct {
	err        error
	ours       bool          // the answer had our JSON body
	wait       time.Duration // retry_after_ms, or Retry-After if not ours
	waitIsTold bool
}

func (m *machine) refused(now time.Time, n int, r refusal) {
	if m.link == nil || m.link.n != n {
		return
	}
	m.link.heard = r.ours
	l := loss{err: r.err}
	switch {
	case r.waitIsTold && r.ours:
		l.at = now.Add(min(r.wait, serverWaitMax))
	case r.waitIsTold:
		wait := min(r.wait, serverWaitMax)
		l.at = now.Add(wait + m.random(max(wait, time.Second)))
	}
	m.ended(now, l)
}

// lost: the connection ended. code 0: without a close frame.
func (m *machine) lost(now time.Time, n int, code wire.CloseCode, err error) {
	if m.link == nil || m.link.n != n {
		return
	}
	m.ended(now, loss{code: code, err: err})
}

// ended decides what follows the end of the link.
func (m *machine) ended(now time.Time, e loss) {
	l := m.link
	m.cutOff()
	m.link = nil
	code, err := e.code, e.err
	if v := l.verdict; v.code != 0 {
		code, err = v.code, &CloseError{v.code, v.reason}
		if !v.at.IsZero() {
			e.at = v.at
		}
		m.hint(v.url)
	} else if code != 0 && err == nil {
		err = &CloseError{Code: code}
	}
	reaction := code.Reaction()
	if reaction == wire.Stop {
		m.stop(err)
		return
	}
	m.count(now, l)
	m.nextAt = m.slot(now, l, e, code)
	m.leave(now, l)
	if code == wire.CloseSlowConsumer {
		m.stableTime = stableUpSlow
	}
	to := m.state
	if to == Connected {
		to = Reconnecting
	}
	m.setState(to, err)
	if reaction == wire.NewCredentials && m.hasProvider {
		m.needToken = true
		m.ask()
	}
}

// count forgets the failures if the link was up for long enough.
func (m *machine) count(now time.Time, l *link) {
	if l.phase == up && now.Sub(l.upSince) >= m.stableTime {
		m.failures, m.stableTime = 0, stableUp
	}
}

// slot is when to try again: as told, else within the server's window after the
// loss of a good connection, else by full jitter.
func (m *machine) slot(now time.Time, l *link, e loss, code wire.CloseCode) time.Time {
	stable := l.phase == up && m.failures == 0 && now.Sub(l.upSince) >= stableUp
	switch {
	case !e.at.IsZero():
		if e.at.Before(now) {
			return now
		}
		return e.at
	case code.Reaction() == wire.BackOffFromCap:
		m.failures = max(m.failures, capFailures)
	case l.phase == up && m.failures == 0 && !e.own && !ownFault(code):
		if !stable {
			m.failures++
		}
		return now.Add(m.random(min(max(l.retryWindow, backoffBase), windowMax)))
	}
	return now.Add(m.backoff())
}

// ownFault: closes that concern this client alone, so that no crowd comes with it.
func ownFault(code wire.CloseCode) bool {
	switch code {
	case wire.ClosePingTimeout, wire.CloseSlowConsumer, wire.CloseSuperseded:
		return true
	}
	return code.Reaction() == wire.NewCredentials
}

// backoff counts a failure and draws its delay.
func (m *machine) backoff() time.Duration {
	delay := m.random(min(backoffCap, backoffBase<<min(m.failures, capFailures)))
	m.failures++
	return delay
}

// leave goes to another URL when this one has been silent for long enough.
func (m *machine) leave(now time.Time, l *link) {
	if l.heard || l.phase == up {
		m.silent = 0
		return
	}
	if m.silent == 0 {
		m.silentAt = now
	}
	m.silent++
	if len(m.urls) < 2 || m.silent < leaveFailures || now.Sub(m.silentAt) < leaveTime {
		return
	}
	other := int(m.random(time.Duration(len(m.urls) - 1)))
	if other >= m.home {
		other++
	}
	m.home, m.silent = other, 0
	m.nextAt = now.Add(m.random(leaveTime))
}

// hint takes a URL from a server for the next attempt; never from wss to ws.
func (m *machine) hint(url string) {
	if strings.HasPrefix(url, "wss://") || strings.HasPrefix(url, "ws://") && !strings.HasPrefix(m.urls[m.home], "wss:") {
		m.nextURL = url
	}
}
