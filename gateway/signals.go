package gateway

import (
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

// signals is what the adaptive ceiling goes by, written by loops and read by the
// door. Atomic.
type signals struct {
	delay    atomic.Int64 // nanoseconds: the longest that a probe waited for its loop
	connects atomic.Int64 // answered connect frames since the last look
	took     atomic.Int64 // milliseconds that they took together
}

// connected notes how long a connect frame was without its answer.
func (s *signals) connected(took time.Duration) {
	s.connects.Add(1)
	s.took.Add(took.Milliseconds())
}

func (s *signals) delayed(d time.Duration) {
	for {
		have := s.delay.Load()
		if int64(d) <= have || s.delay.CompareAndSwap(have, int64(d)) {
			return
		}
	}
}

// take returns what was seen since the last call: the longest delay, the mean connect.
func (s *signals) take() admission.Signals {
	seen := admission.Signals{LoopDelay: time.Duration(s.delay.Swap(0))}
	if n := s.connects.Swap(0); n > 0 {
		seen.Connect = time.Duration(s.took.Swap(0)/n) * time.Millisecond
	}
	return seen
}

// milliseconds is a finer clock than seconds; it wraps after 49 days, so only
// differences mean something.
func (e *Edge) milliseconds(now time.Time) uint32 { return uint32(now.Sub(e.born).Milliseconds()) }

// probe asks a loop how long things wait for it.
type probe struct{ posted time.Time }

func (m *probe) apply(l *loop) {
	l.edge.gate.signals.delayed(time.Since(m.posted))
	l.probed.Store(false)
}

// probeLoops posts one to each loop that has answered the last.
func (e *Edge) probeLoops(now time.Time) {
	for _, l := range e.loops {
		if l.probed.CompareAndSwap(false, true) {
			l.probedAt = now
			l.inbox.post(&probe{now})
		} else {
			e.gate.signals.delayed(now.Sub(l.probedAt))
		}
	}
}
