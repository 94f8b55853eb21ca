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
func (h *handover) figures(edge string, now time.Time) *gatewayv1.Progress {
	f := &gatewayv1.Progress{
		Operation: h.operation, Edge: edge, Moved: uint32(h.moved.Load()), Closed: uint32(h.closed.Load()),
		Stragglers: uint32(h.stragglers.Load()), Gone: uint32(h.gone.Load()), Remaining: uint32(max(h.remaining(), 0)),
		Told: uint32(max(h.all(classTold)+h.all(classBare), 0)), AtMs: uint64(now.UnixMilli()), Message: h.message,
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
	f := h.figures(e.cfg.ID, now)
	p.Report(f, h.opStart)
	if f.Message != "" && f.Message != h.message {
		e.log.Warn("handing over", "operation", h.operation, "message", f.Message)
	}
	h.message = f.Message
	f.Ended = ended
	e.metrics.handover.show(f)
	if e.peers == nil {
		return
	}
	if message, err := proto.Marshal(f); err == nil {
		_ = e.peers.Say(progressTopic, message) // the bus may be away; the next one comes in a second
	}
}

// putProgress puts an edge's figures in the place of those it told before.
func putProgress(op *gatewayv1.Operation, f *gatewayv1.Progress) {
	for i, old := range op.Progress {
		if old.Edge == f.Edge {
			op.Progress[i] = f
			return
		}
	}
	op.Progress = append(op.Progress, f)
}
