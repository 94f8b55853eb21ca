package leave

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// ProgressTopic is where figures of departures are told.
const ProgressTopic = "progress"

// figures are those of an edge's part in an operation: total = moved + closed +
// stragglers + gone + remaining.
func (d *departure) figures(now time.Time, ended bool) *gatewayv1.Progress {
	f := &gatewayv1.Progress{
		Operation: d.operation, Edge: d.edge, Incarnation: d.incarnation, Ended: ended, Moved: uint32(d.moved.Load()), Closed: uint32(d.closed.Load()),
		Stragglers: uint32(d.stragglers.Load()), Gone: uint32(d.gone.Load()), Remaining: uint32(max(d.remaining(), 0)),
		Told: uint32(max(d.all(classHinted)+d.all(classUnplaced), 0)), AtMs: uint64(now.UnixMilli()), Message: d.message,
		Granted: d.plan.granted, Missing: d.plan.missing, PlannedMs: d.plan.endMS, GrantedPerSecond: d.plan.perSecond,
	}
	if ended {
		f.GrantedPerSecond = d.plan.highest
	}
	f.Total = f.Moved + f.Closed + f.Stragglers + f.Gone + f.Remaining
	return f
}

// endState is how a drain or a rebalance of one edge ended.
func endState(last *gatewayv1.Progress) gatewayv1.OperationState {
	if last.Stragglers > 0 {
		return gatewayv1.OperationState_OPERATION_STATE_PARTLY
	}
	return gatewayv1.OperationState_OPERATION_STATE_DONE
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

// doneBy says that an edge's part in an operation has ended.
func doneBy(op *gatewayv1.Operation, edge string) bool {
	for _, f := range op.Progress {
		if f.Edge == edge {
			return f.Ended
		}
	}
	return false
}
