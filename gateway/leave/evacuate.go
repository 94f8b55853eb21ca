package leave

import (
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// evacuate does this edge's part in the evacuation of its region: it moves its clients
// to edges of other regions and stays, refusing newcomers, until the operation has
// ended. All edges of the region do the same at once; what they share is the
// receivers' headroom and rate, which those split evenly among who asks.
func (g *Governor) evacuate(b Bounds, op *gatewayv1.Operation) {
	g.deps.Edge.SetLeaving(true)
	var cut *departure
	stop := func() bool { return b.Leave.Err() != nil || g.records.ended(op.Id) || g.records.drainsMe() }
	if op.State == gatewayv1.OperationState_OPERATION_STATE_RUNNING && !doneBy(op, g.cfg.ID) {
		start := time.Now()
		window := time.Duration(op.DeadlineMs) * time.Millisecond
		// What has passed of it counts; clocks that differ cost half of it at most.
		age := min(max(start.Sub(time.UnixMilli(int64(op.StartedMs))), 0), window/2)
		d := g.depart(op, "evacuation", start.Add(-age), start, start.Add(window-age))
		g.cfg.Log.Info("evacuating", "operation", op.Id, "conns", g.deps.Edge.Conns(), "window", window-age)
		cfg := drain.Config{Elsewhere: true, GrantedOnly: !op.Forced}
		switch g.drive(b, d, cfg, func(*drain.Plan, time.Time) bool { return stop() }) {
		case brokenOff:
			return
		case completed:
			g.records.end(op, d, false)
		case calledOff:
			cut = d
		}
	}
	for !b.over() && !stop() { // empty, until the operation has ended
		g.idle(b, g.records.changed())
	}
	if b.Leave.Err() == nil && !b.over() && !g.records.drainsMe() {
		g.cfg.Log.Info("serving again", "operation", op.Id)
		g.deps.Edge.SetLeaving(false)
		if cut != nil {
			g.records.end(op, cut, false)
		}
	}
}
