package gateway

import (
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// evacuate does this edge's part in the evacuation of its region: it hands its clients
// to edges of other regions and stays, refusing newcomers, until the operation has
// ended. All edges of the region do the same at once; what they share is the
// receivers' headroom and rate, which those split evenly among who asks.
func (e *Edge) evacuate(b bounds, op *gatewayv1.Operation) {
	e.shut()
	var cut *handover
	stop := func() bool { return b.leave.Err() != nil || e.ended(op.Id) || e.drainMe() }
	if op.State == gatewayv1.OperationState_OPERATION_STATE_RUNNING && !doneBy(op, e.cfg.ID) {
		start := time.Now()
		window := time.Duration(op.DeadlineMs) * time.Millisecond
		// What has passed of it counts; clocks that differ cost half of it at most.
		age := min(max(start.Sub(time.UnixMilli(int64(op.StartedMs))), 0), window/2)
		h := e.newHandover(op, start.Add(-age), start, start.Add(window-age))
		h.reason = "evacuation"
		e.log.Info("evacuating", "operation", op.Id, "conns", e.counts.conns.Load(), "window", window-age)
		cfg := drain.Config{Elsewhere: true, GrantedOnly: !op.Forced}
		switch e.hand(b, h, cfg, func(*drain.Plan, time.Time) bool { return stop() }) {
		case brokenOff:
			return
		case handedOver:
			e.recordEnd(op, h, unended)
		case calledOff:
			cut = h
		}
	}
	e.hold(b, stop)
	if b.leave.Err() == nil && !b.over() && !e.drainMe() {
		e.log.Info("serving again", "operation", op.Id)
		e.reopen()
		if cut != nil {
			e.recordEnd(op, cut, unended)
		}
	}
}

// hold waits, empty, until the operation has ended or there is something more
// important.
func (e *Edge) hold(b bounds, stop func() bool) {
	for !b.over() && !stop() {
		select {
		case <-b.leave.Done():
		case <-b.abort.Done():
		case <-b.failing.Done():
		case <-e.operationsChanged():
		case <-time.After(time.Second):
		}
	}
}

func (e *Edge) drainMe() bool {
	op := e.myOperation()
	return op != nil && op.Kind == gatewayv1.OperationKind_OPERATION_KIND_DRAIN
}

func doneBy(op *gatewayv1.Operation, edge string) bool {
	for _, f := range op.Progress {
		if f.Edge == edge {
			return f.Ended
		}
	}
	return false
}
