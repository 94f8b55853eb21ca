package gateway

import (
	"context"
	"math/rand/v2"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const drainStep = 50 * time.Millisecond

// drain refuses newcomers and closes every conn with 4001, one by one, spread
// evenly over DrainDeadline less the time the last closes need: all at once would
// bring them all back at once. abort ends the waiting.
func (e *Edge) drain(abort context.Context) {
	e.ready.Store(false)
	e.draining.Store(true)
	e.members.SetState(gatewayv1.State_STATE_DRAINING)
	window := max(e.cfg.DrainDeadline-e.cfg.CloseWait-time.Second, drainStep)
	e.log.Info("draining", "conns", e.conns.Load(), "window", window)
	ticker := time.NewTicker(drainStep)
	defer ticker.Stop()
	start := time.Now()
	for steps := int(window / drainStep); steps > 0 && e.held() > 0; steps-- {
		select {
		case <-abort.Done():
			return
		case <-ticker.C:
		}
		for _, l := range e.loops {
			l.inbox.post(&shedding{stepsLeft: steps})
		}
	}
	e.waitForCloses(abort, start)
}

// waitForCloses gives the clients' halves of the last closes their time.
func (e *Edge) waitForCloses(abort context.Context, start time.Time) {
	ticker := time.NewTicker(drainStep)
	defer ticker.Stop()
	for e.held() > 0 && time.Since(start) < e.cfg.DrainDeadline {
		select {
		case <-abort.Done():
			return
		case <-ticker.C:
		}
	}
}

// shedding makes a loop close its share of one step: what is left over the steps
// that are left.
type shedding struct{ stepsLeft int }

func (m *shedding) apply(l *loop) {
	open := 0
	for _, c := range l.slots {
		if c != nil && !c.closing {
			open++
		}
	}
	n := open / m.stepsLeft
	if rand.IntN(m.stepsLeft) < open%m.stepsLeft {
		n++ // few conns over many steps: spread too
	}
	for _, c := range l.slots {
		if n == 0 {
			return
		}
		if c != nil && !c.closing {
			c.closeWith(wire.CloseShutdown, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "this edge is leaving", reasonShutdown)
			n--
		}
	}
}
