package leave

import (
	"time"

	"github.com/spillway-io/spillway/gateway/load"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// drain moves all clients to other edges and returns true when the process may end; false:
// it was called off, and the edge serves again. op may be nil or no drain: then it is a
// signal that began it. The deadline counts from here.
func (g *Governor) drain(b Bounds, op *gatewayv1.Operation) (ended bool) {
	start := time.Now()
	within := g.deps.Settings().DrainDeadline
	if op == nil || op.Kind != gatewayv1.OperationKind_OPERATION_KIND_DRAIN {
		op = g.records.begin(gatewayv1.OperationKind_OPERATION_KIND_DRAIN, "", "signal", start, within)
	} else if op.DeadlineMs > 0 {
		within = time.Duration(op.DeadlineMs) * time.Millisecond
	}
	g.deps.Edge.SetLeaving(true)
	g.cfg.Log.Info("draining", "operation", op.Id, "cause", op.Cause, "conns", g.deps.Edge.Conns(), "deadline", within)
	undone := func() bool { return b.Leave.Err() == nil && g.records.aborted(op.Id) }
	deadline := start.Add(within)
	end := g.lastClose(start, within)
	if !notice(b, min(g.deps.Settings().DrainNotice, within/2), undone) {
		if b.over() {
			g.records.broken(op, nil, g.deps.Edge.Conns())
			return true
		}
		g.deps.Edge.SetLeaving(false)
		return false
	}
	d := g.depart(op, "shutdown", start, time.Now(), end)
	hurried := false
	out := g.drive(b, d, drain.Config{}, func(p *drain.Plan, now time.Time) bool {
		if b.Leave.Err() != nil && !hurried {
			// A signal in the middle: its own deadline holds from now on.
			hurried = true
			if soon := g.lastClose(now, g.deps.Settings().DrainDeadline); soon.Before(d.endTime()) {
				p.Hurry(now, soon)
				d.setEnd(soon)
				deadline = now.Add(g.deps.Settings().DrainDeadline)
			}
		}
		return undone()
	})
	switch out {
	case brokenOff:
		g.records.broken(op, d, g.deps.Edge.Conns())
		return true
	case calledOff:
		g.cfg.Log.Info("the drain was called off", "operation", op.Id)
		g.deps.Edge.SetLeaving(false)
		g.records.end(op, d, false)
		return false
	}
	g.waitForCloses(b, deadline)
	g.records.end(op, d, true)
	if d.figures(start, true).Total > 0 {
		// The window of the last closes becomes whole: membership says a last load figure
		// when the edge has ended, and what it does not tell is never known.
		b.sleep(load.WindowLength)
	}
	return true
}

// lastClose leaves the closes and the farewell their part of the deadline.
func (g *Governor) lastClose(start time.Time, within time.Duration) time.Time {
	return start.Add(max(within-min(g.cfg.CloseWait, within/5)-min(time.Second, within/10), drain.Step))
}

// notice waits for balancers to see /readyz, and new clients are refused meanwhile.
// false: called off, or everything ends.
func notice(b Bounds, d time.Duration, undone func() bool) bool {
	for until := time.Now().Add(d); time.Now().Before(until); {
		b.sleep(drain.Step)
		if b.over() || undone() {
			return false
		}
	}
	return !b.over() && !undone()
}

// waitForCloses gives the clients' halves of the last closes their time.
func (g *Governor) waitForCloses(b Bounds, deadline time.Time) {
	for g.deps.Edge.Held() > 0 && time.Now().Before(deadline) && !b.over() {
		b.sleep(drain.Step)
	}
}
