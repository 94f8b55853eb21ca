package machine

import (
	"strings"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

// count forgets the failures if the link was up for long enough.
func (m *Machine) count(now time.Time, l *link) {
	if l.phase == up && now.Sub(l.upSince) >= m.stableTime {
		m.failures, m.stableTime = 0, stableUp
	}
}

// slot is when to try again: as told, else within the server's window after the
// loss of a good connection, else by full jitter.
func (m *Machine) slot(now time.Time, l *link, e loss) time.Time {
	stable := l.phase == up && m.failures == 0 && now.Sub(l.upSince) >= stableUp
	switch {
	case e.at.After(now):
		return e.at
	case !e.at.IsZero() && stable:
		return now
	case !e.at.IsZero(): // a wait of nothing, again and again, would be a storm
	case e.code.Reaction() == wire.BackOffFromCap:
		m.failures = max(m.failures, capFailures)
	case l.phase == up && m.failures == 0 && !e.own && !ownFault(e.code):
		if !stable {
			m.failures++
		}
		return now.Add(m.cfg.Random(min(max(l.retryWindow, backoffBase), windowMax)))
	}
	return now.Add(m.backoff(&m.failures))
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
func (m *Machine) backoff(failures *int) time.Duration {
	delay := m.cfg.Random(min(backoffCap, backoffBase<<min(*failures, capFailures)))
	*failures++
	return delay
}

// leave goes to another URL when this one has been silent for long enough. What a
// hinted edge does says nothing about the URL.
func (m *Machine) leave(now time.Time, l *link) {
	switch {
	case l.heard || l.phase == up:
		m.silent = 0
		return
	case l.hinted:
		return
	}
	if m.silent == 0 {
		m.silentAt = now
	}
	m.silent++
	if len(m.cfg.URLs) < 2 || m.silent < leaveFailures || now.Sub(m.silentAt) < leaveTime {
		return
	}
	other := int(m.cfg.Random(time.Duration(len(m.cfg.URLs) - 1)))
	if other >= m.home {
		other++
	}
	m.home, m.silent = other, 0
	m.next.at = now.Add(m.cfg.Random(leaveTime))
}

// hint is a URL that a server told on link l, if it may be followed: never from wss
// to ws.
func (m *Machine) hint(l *link, url string) string {
	secure := strings.HasPrefix(m.cfg.URLs[m.home], "wss:") || l != nil && strings.HasPrefix(l.url, "wss:")
	if url == "" || CheckURL(url) != nil || secure && !strings.HasPrefix(url, "wss:") {
		return ""
	}
	return url
}

// Schedule puts the next attempt at this time, whatever was planned. It does nothing while
// there is a connection or an attempt. A loop that takes its clients' connections away uses
// it to say when they come back.
func (m *Machine) Schedule(at time.Time) {
	if m.state != Disconnected && m.link == nil {
		m.next.at, m.next.told = at, true
	}
}

const (
	nudgeTime  = 2 * time.Second  // an attempt comes within that, if brought forward
	nudgePause = 30 * time.Second // and not again before
	nudgePing  = 5 * time.Second  // a connection has that for an answer
)

// Nudge: the network is back, or the machine woke up. A connection has to show that
// it lives; an attempt that no server timed is brought forward.
func (m *Machine) Nudge(now time.Time) {
	if m.state == Disconnected {
		return
	}
	if l := m.link; l != nil {
		for _, l := range []*link{l, m.old} {
			if l != nil && l.phase == up && (l.pongBy.IsZero() || l.pongBy.After(now.Add(nudgePing))) {
				m.ping(now, l, nudgePing)
			}
		}
		return
	}
	if m.next.told || !m.nudgedAt.IsZero() && now.Sub(m.nudgedAt) < nudgePause {
		return
	}
	if at := now.Add(m.cfg.Random(nudgeTime)); at.Before(m.next.at) {
		m.next.at, m.nudgedAt = at, now
	}
}
