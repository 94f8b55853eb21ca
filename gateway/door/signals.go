package door

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

// delayed notes how long a probe has waited.
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

// Connected notes how long a connect frame was without its answer.
func (g *Gate) Connected(took time.Duration) { g.signals.connected(took) }

// Probe asks a loop how long things wait for it. The door posts one to each loop that has
// answered the last.
type Probe struct {
	gate   *Gate
	loop   Loop
	onWay  atomic.Bool
	posted time.Time // owned by the door
}

// Answer is the loop's, on its own goroutine.
func (p *Probe) Answer() {
	p.gate.signals.delayed(time.Since(p.posted))
	p.onWay.Store(false)
}

func (p *Probe) send(now time.Time) {
	if p.onWay.CompareAndSwap(false, true) {
		p.posted = now
		p.loop.Probe(p)
	} else {
		p.gate.signals.delayed(now.Sub(p.posted))
	}
}
