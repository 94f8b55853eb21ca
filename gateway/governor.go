package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Operations is what a cluster does at the moment (presence/control.Control). The
// reads do not block; the writes wait for the registry, until ctx ends.
type Operations interface {
	Operations() []*gatewayv1.Operation
	Changed() <-chan struct{}
	PutOperation(ctx context.Context, op *gatewayv1.Operation) error
	UpdateOperation(ctx context.Context, id string, change func(*gatewayv1.Operation) bool) error
}

// governor decides where this edge stands: serving, leaving, evacuated. One
// goroutine, Run's own, turns it:
//
//	           signal, drain ----------------------------> leaving --> end
//	          |                                             |
//	serving --+-- evacuation of its region --> emptying --> held
//	   ^  ^   |                                  |           |
//	   |  |   +-- surplus --> handing over --+   |           |
//	   |  +----------------------------------+   |           |
//	   +-------- undrained, aborted, returned ---+-----------+
type governor struct {
	answers chan *heard   // of other edges; what has no room is asked again
	asking  chan struct{} // a place for each question under way
	wait    sync.WaitGroup

	// owned by the governor
	rebalance rebalancer
	received  []drain.Receiver
	seen      time.Time       // when it looked who the others are
	recording <-chan struct{} // closed when the record of the last own operation is written, or is not; nil: none
}

func newGovernor() *governor {
	return &governor{answers: make(chan *heard, maxAsking), asking: make(chan struct{}, maxAsking)}
}

func (g *governor) hear(a *heard) {
	select {
	case g.answers <- a:
	default:
	}
}

// bounds are what ends the governor's work: the signal to leave, the one to end at
// once, a part that failed.
type bounds struct{ leave, abort, failing context.Context }

func (b bounds) over() bool { return b.abort.Err() != nil || b.failing.Err() != nil }

const (
	lookAround   = 200 * time.Millisecond // how old the picture of the others may be
	recordWithin = 1500 * time.Millisecond
	brokenWithin = 300 * time.Millisecond // of a process that is to end at once
)

// govern serves until the edge has left, in whatever way.
func (e *Edge) govern(b bounds) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for !b.over() {
		changed := e.operationsChanged()
		e.lookBack()
		switch op := e.myOperation(); {
		case b.leave.Err() != nil:
			e.leave(b, op)
			return
		case op == nil:
			e.shareSurplus(b)
		case op.Kind == gatewayv1.OperationKind_OPERATION_KIND_DRAIN:
			if e.leave(b, op) {
				return
			}
		default:
			e.evacuate(b, op)
		}
		select {
		case <-b.leave.Done():
		case <-b.failing.Done():
		case <-b.abort.Done():
		case <-changed:
		case <-ticker.C:
		}
	}
}

// operationsChanged is closed at the next change; never without operations.
func (e *Edge) operationsChanged() <-chan struct{} {
	if e.operations == nil {
		return nil
	}
	return e.operations.Changed()
}

// myOperation is the one that this edge has a part in now: its own drain first, then
// an evacuation of its region.
func (e *Edge) myOperation() *gatewayv1.Operation {
	if e.operations == nil {
		return nil
	}
	var mine *gatewayv1.Operation
	for _, op := range e.operations.Operations() {
		switch {
		case control.Ended(op):
		case e.isMyDrain(op):
			return op
		case op.Kind == gatewayv1.OperationKind_OPERATION_KIND_EVACUATE && op.Region == e.cfg.Region:
			mine = op
		}
	}
	return mine
}

func (e *Edge) isMyDrain(op *gatewayv1.Operation) bool {
	if op.Kind != gatewayv1.OperationKind_OPERATION_KIND_DRAIN || op.Node != e.cfg.ID || control.Ended(op) {
		return false
	}
	if op.Incarnation == 0 {
		return int64(op.StartedMs) >= e.clock.born.UnixMilli()
	}
	return op.Incarnation == e.targets.Incarnation()
}

// stateOf is the newest state of an operation; running, if the registry has not shown
// it yet or is away.
func (e *Edge) stateOf(id string) *gatewayv1.Operation {
	if e.operations != nil {
		for _, op := range e.operations.Operations() {
			if op.Id == id {
				return op
			}
		}
	}
	return &gatewayv1.Operation{State: gatewayv1.OperationState_OPERATION_STATE_RUNNING}
}

func (e *Edge) ended(id string) bool { return control.Ended(e.stateOf(id)) }

func (e *Edge) aborted(id string) bool {
	return e.stateOf(id).State == gatewayv1.OperationState_OPERATION_STATE_ABORTED
}

// shut takes the edge out of balancers and of everybody's targets.
func (e *Edge) shut() {
	e.ready.Store(false)
	e.gate.SetLeaving(true)
	e.members.SetState(gatewayv1.State_STATE_DRAINING)
}

// reopen is the way back.
func (e *Edge) reopen() {
	e.members.SetState(gatewayv1.State_STATE_SERVING)
	e.gate.SetLeaving(false)
	e.ready.Store(true)
}
