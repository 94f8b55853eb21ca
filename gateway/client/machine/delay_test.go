package machine

import (
	"fmt"
	"testing"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// The first waits of many clients fill the window evenly, later ones grow to the cap.
func TestWaitsAreSpread(t *testing.T) {
	for failures, most := range map[int]time.Duration{0: 500 * time.Millisecond, 1: time.Second, 3: 4 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 60: 30 * time.Second} {
		m := newMachine("ws://a.test")
		m.failures = failures
		var asked time.Duration
		m.cfg.Random = func(d time.Duration) time.Duration { asked = d; return 0 }
		m.backoff(&m.failures)
		if asked != most || m.failures != failures+1 {
			t.Errorf("after %d failures: up to %v, then %d", failures, asked, m.failures)
		}
	}
}

func TestHintsNeverLeaveTLS(t *testing.T) {
	for _, c := range []struct{ home, hint, want string }{
		{"wss://a.test", "wss://b.test", "wss://b.test"},
		{"wss://a.test", "ws://b.test", ""},
		{"ws://a.test", "ws://b.test", "ws://b.test"},
		{"ws://a.test", "wss://b.test", "wss://b.test"},
		{"ws://a.test", "http://b.test", ""},
		{"ws://a.test", "", ""},
	} {
		m := newMachine(c.home)
		if got := m.hint(nil, c.hint); got != c.want {
			t.Errorf("%v: %q", c, got)
		}
	}
}

// A suspended machine proves nothing by its silence.
func TestLateTimerPingsAgain(t *testing.T) {
	for _, c := range []struct {
		late   time.Duration
		paused bool
		lives  bool
	}{{0, false, false}, {lateTimer, false, false}, {lateTimer + 1, false, true}, {time.Hour, false, true}, {0, true, true}} {
		t.Run(fmt.Sprintf("%v late, paused %v", c.late, c.paused), func(t *testing.T) {
			now := time.Unix(1_764_470_000, 0)
			m := newMachine("ws://a.test")
			m.cfg.Random = func(d time.Duration) time.Duration { return d / 2 }
			m.Start(now)
			m.Opened(now, 1)
			m.Frame(now, 1, &clientv1.ServerFrame{Id: 1, Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{}}})
			now = m.Wake()
			m.Tick(now, false) // ping
			now = m.Wake().Add(c.late)
			m.Tick(now, c.paused)
			if lives := m.link != nil; lives != c.lives {
				t.Errorf("lives: %v", lives)
			}
		})
	}
}

// newMachine draws the middle of every jitter.
func newMachine(urls ...string) *Machine {
	return New(&Config{URLs: urls, Random: func(d time.Duration) time.Duration { return d / 2 }}, &Stats{})
}
