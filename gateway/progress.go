package gateway

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const progressTopic = "progress"

// figures are those of an edge's part in an operation: total = moved + closed +
// stragglers + gone + remaining.
func (e *Edge) figures(h *handover, now time.Time, ended bool) *gatewayv1.Progress {
	f := &gatewayv1.Progress{
		Operation: h.operation, Edge: e.cfg.ID, Incarnation: e.targets.Incarnation(), Ended: ended, Moved: uint32(h.moved.Load()), Closed: uint32(h.closed.Load()),
		Stragglers: uint32(h.stragglers.Load()), Gone: uint32(h.gone.Load()), Remaining: uint32(max(h.remaining(), 0)),
		Told: uint32(max(h.all(classTold)+h.all(classBare), 0)), AtMs: uint64(now.UnixMilli()), Message: h.message,
		Granted: h.plan.granted, Missing: h.plan.missing, PlannedMs: h.plan.endMS, GrantedPerSecond: h.plan.perSecond,
	}
	if ended {
		f.GrantedPerSecond = h.plan.highest
	}
	f.Total = f.Moved + f.Closed + f.Stragglers + f.Gone + f.Remaining
	return f
}

// state is how a drain or a rebalance of one edge ended.
func (h *handover) state(last *gatewayv1.Progress) gatewayv1.OperationState {
	if last.Stragglers > 0 {
		return gatewayv1.OperationState_OPERATION_STATE_PARTLY
	}
	return gatewayv1.OperationState_OPERATION_STATE_DONE
}

// sayProgress tells routers on the bus and the metrics how far h has come.
func (e *Edge) sayProgress(h *handover, p *drain.Plan, now time.Time, ended bool) {
	message := h.note(p)
	if message != "" && message != h.message {
		e.log.Warn("handing over", "operation", h.operation, "message", message)
	}
	h.message = message
	f := e.figures(h, now, ended)
	e.metrics.drain.show(f)
	if e.peers == nil {
		return
	}
	if message, err := proto.Marshal(f); err == nil {
		_ = e.peers.Broadcast(progressTopic, message) // the bus may be away; the next one comes in a second
	}
}

// putProgress puts an edge's figures in the place of those it told before; what it told
// before a restart stays.
func putProgress(op *gatewayv1.Operation, f *gatewayv1.Progress) {
	for i, old := range op.Progress {
		if old.Edge == f.Edge && (old.Incarnation == f.Incarnation || old.Incarnation == 0) {
			op.Progress[i] = f
			return
		}
	}
	op.Progress = append(op.Progress, f)
}
