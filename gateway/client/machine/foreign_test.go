package machine

import (
	"bytes"
	"testing"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// A client of another make keeps its own pauses whatever a server says, never moves, never
// shows a ticket, and brings a token to each connection.
func TestAForeignClientKeepsItsOwnPauses(t *testing.T) {
	now := time.Unix(1_764_470_000, 0)
	m := newMachine("ws://a.test")
	m.cfg.HasProvider = true
	m.cfg.Foreign = &Foreign{AttemptTime: 5 * time.Second, Pause: func(failures int) time.Duration { return time.Second << failures }}
	tokens, links := 0, 0
	untilQuiet := func() {
		for list := m.Take(); len(list) > 0; list = m.Take() {
			for _, a := range list {
				switch a := a.(type) {
				case AskToken:
					tokens++
					m.Token(now, "token", nil)
				case OpenLink:
					links++
					if a.Ticket != "" || a.Move || a.Time != 5*time.Second {
						t.Errorf("%+v", a)
					}
				case Send:
					if bytes.Contains(a.Text, []byte("ticket")) || bytes.Contains(a.Text, []byte("attempt")) {
						t.Errorf("says %s", a.Text)
					}
				}
			}
		}
	}
	wait := func() time.Duration {
		before := now
		now = m.Wake()
		m.Tick(now, false)
		untilQuiet()
		return now.Sub(before)
	}
	m.Start(now)
	untilQuiet()
	come := func() {
		m.Opened(now, links)
		m.Frame(now, links, &clientv1.ServerFrame{Id: m.lastID, Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{Ticket: "t", RetryWindowMs: 9000, PingIntervalMs: 600_000}}})
		untilQuiet()
	}
	come()
	now = now.Add(stableUp)
	m.Frame(now, links, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{AfterMs: 1, DeadlineMs: 9000, Ticket: "u"}}})
	untilQuiet()
	if m.State() != Connected || links != 1 {
		t.Errorf("%v with %d links after `reconnect`", m.State(), links)
	}
	m.Lost(now, links, 4200, nil) // an SDK stays away after this one
	if d := wait(); d != time.Second {
		t.Errorf("came back after %v", d)
	}
	m.Refused(now, links, Refusal{Ours: true, WaitIsTold: true, Wait: time.Hour})
	if d := wait(); d != 2*time.Second {
		t.Errorf("came back after %v", d)
	}
	m.Lost(now, links, wire.CloseBusy, nil)
	if d := wait(); d != 4*time.Second || links != 4 || tokens != 4 {
		t.Errorf("came back after %v, %d links, %d tokens", d, links, tokens)
	}
}

// Whoever takes connections away says when the client comes back.
func TestAnAttemptIsScheduled(t *testing.T) {
	now := time.Unix(1_764_470_000, 0)
	m := newMachine("ws://a.test")
	m.Start(now)
	m.Schedule(now.Add(time.Hour)) // one is under way
	if at := m.Wake(); at != now.Add(attemptTime) {
		t.Errorf("wakes after %v", at.Sub(now))
	}
	m.Lost(now, 1, 0, nil)
	m.Schedule(now.Add(time.Hour))
	m.Nudge(now)
	if at := m.Wake(); at != now.Add(time.Hour) {
		t.Errorf("wakes after %v", at.Sub(now))
	}
}
