package leave

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	recordWithin = 1500 * time.Millisecond
	brokenWithin = 300 * time.Millisecond // of a process that is to end at once
)

// records reads what the cluster does at the moment, and writes what becomes of the
// operations that this edge has a part in. The registry may be away: reads show what was
// last known, writes are best effort, and a departure never waits for the first one.
// Owned by the governor.
type records struct {
	cfg         *Config
	operations  Operations // nil: none
	incarnation func() uint64
	working     context.Context // ends when writes must
	wait        *sync.WaitGroup
	writing     <-chan struct{} // closed when the record of the last own operation is written, or is not; nil: none
}

// all are the operations, newest state.
func (r *records) all() []*gatewayv1.Operation {
	if r.operations == nil {
		return nil
	}
	return r.operations.Operations()
}

// changed is closed at the next change; never without operations.
func (r *records) changed() <-chan struct{} {
	if r.operations == nil {
		return nil
	}
	return r.operations.Changed()
}

// mine is the operation that this edge has a part in now: its own drain first, then an
// evacuation of its region.
func (r *records) mine() *gatewayv1.Operation {
	var mine *gatewayv1.Operation
	for _, op := range r.all() {
		switch {
		case control.Ended(op):
		case r.isMyDrain(op):
			return op
		case op.Kind == gatewayv1.OperationKind_OPERATION_KIND_EVACUATE && op.Region == r.cfg.Region:
			mine = op
		}
	}
	return mine
}

func (r *records) isMyDrain(op *gatewayv1.Operation) bool {
	if op.Kind != gatewayv1.OperationKind_OPERATION_KIND_DRAIN || op.Node != r.cfg.ID || control.Ended(op) {
		return false
	}
	if op.Incarnation == 0 {
		return int64(op.StartedMs) >= r.cfg.Born.UnixMilli()
	}
	return op.Incarnation == r.incarnation()
}

// drainsMe says that this edge's own drain is due.
func (r *records) drainsMe() bool {
	op := r.mine()
	return op != nil && op.Kind == gatewayv1.OperationKind_OPERATION_KIND_DRAIN
}

// find is the newest state of an operation; running, if the registry has not shown it yet
// or is away.
func (r *records) find(id string) *gatewayv1.Operation {
	for _, op := range r.all() {
		if op.Id == id {
			return op
		}
	}
	return &gatewayv1.Operation{State: gatewayv1.OperationState_OPERATION_STATE_RUNNING}
}

func (r *records) ended(id string) bool { return control.Ended(r.find(id)) }

func (r *records) aborted(id string) bool {
	return r.find(id).State == gatewayv1.OperationState_OPERATION_STATE_ABORTED
}

// begin makes an operation of this edge and writes it in the background.
func (r *records) begin(kind gatewayv1.OperationKind, suffix, cause string, start time.Time, within time.Duration) *gatewayv1.Operation {
	op := &gatewayv1.Operation{
		Id: control.NewOperationID(start) + suffix, Kind: kind,
		State: gatewayv1.OperationState_OPERATION_STATE_RUNNING, Node: r.cfg.ID, Incarnation: r.incarnation(), Region: r.cfg.Region,
		StartedMs: uint64(start.UnixMilli()), DeadlineMs: uint32(within.Milliseconds()), Cause: cause,
	}
	if r.operations == nil {
		return op
	}
	written := make(chan struct{})
	r.writing = written
	r.wait.Go(func() { // ends with the write, or with working; the governor waits for it
		defer close(written)
		ctx, cancel := context.WithTimeout(r.working, recordWithin)
		defer cancel()
		if err := r.operations.PutOperation(ctx, op); err != nil {
			r.cfg.Log.Warn("could not record the operation; it goes on", "operation", op.Id, "err", err)
		}
	})
	return op
}

// end writes the last figures of this edge into the record of an operation. whole: the
// operation is this edge's alone and ends with it; else it has ended already, or a router
// says when all edges are done.
func (r *records) end(op *gatewayv1.Operation, d *departure, whole bool) {
	last := d.figures(time.Now(), true)
	r.cfg.Log.Info("clients have left", "operation", op.Id, "moved", last.Moved, "closed", last.Closed, "stragglers", last.Stragglers,
		"gone", last.Gone, "remaining", last.Remaining, "message", d.message)
	r.update(op.Id, recordWithin, func(op *gatewayv1.Operation) {
		putProgress(op, last)
		if whole {
			op.State, op.Message = endState(last), d.message
		}
	})
}

// broken says in the record that this edge ends in the middle of a drain or a rebalance
// of its own: a router would find out ten seconds later. The end does not wait for a
// registry that does not answer. d is nil if it had not begun.
func (r *records) broken(op *gatewayv1.Operation, d *departure, left int) {
	r.update(op.Id, brokenWithin, func(op *gatewayv1.Operation) {
		if control.Ended(op) {
			return
		}
		if d != nil {
			putProgress(op, d.figures(time.Now(), true))
		}
		op.State = gatewayv1.OperationState_OPERATION_STATE_FAILED
		op.Message = fmt.Sprintf("the edge was ended at once, with %d connections", left)
	})
}

// update changes the record of an operation.
func (r *records) update(id string, within time.Duration, change func(*gatewayv1.Operation)) {
	if r.operations == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.working, within)
	defer cancel()
	if r.writing != nil {
		select {
		case <-r.writing:
		case <-ctx.Done():
		}
	}
	err := r.operations.UpdateOperation(ctx, id, func(op *gatewayv1.Operation) bool { change(op); return true })
	if err != nil {
		r.cfg.Log.Warn("could not record the end of the operation", "operation", id, "err", err)
	}
}
