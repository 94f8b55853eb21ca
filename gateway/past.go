package gateway

import (
	"github.com/cespare/xxhash/v2"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// movedBy stands for the operation that brought a session here; 0: none. Four bytes a
// session, and a collision costs one client a move too early or too late.
type movedBy uint32

func moveOf(operation string) movedBy {
	if operation == "" {
		return 0
	}
	return movedBy(max(uint32(xxhash.Sum64String(operation)), 1))
}

// past is what became of operations that brought clients here; immutable.
type past struct {
	undone map[movedBy]bool   // called off: its clients were moved for nothing
	home   map[movedBy]string // the region that was emptied by it, and is in service again
}

// lookBack takes in what became of operations.
func (e *Edge) lookBack() {
	if e.operations == nil {
		return
	}
	p := &past{undone: make(map[movedBy]bool), home: make(map[movedBy]string)}
	for _, op := range e.operations.Operations() {
		evacuation := op.Kind == gatewayv1.OperationKind_OPERATION_KIND_EVACUATE
		switch {
		case op.State == gatewayv1.OperationState_OPERATION_STATE_ABORTED && (evacuation || op.Kind == gatewayv1.OperationKind_OPERATION_KIND_DRAIN):
			p.undone[moveOf(op.Id)] = true
		case op.State == gatewayv1.OperationState_OPERATION_STATE_DONE && evacuation && op.Region != e.cfg.Region:
			p.home[moveOf(op.Id)] = op.Region
		}
	}
	e.past.Store(p)
}

// movedOfLate says that a client was moved within rebalance.window by a rebalance (away
// from here or to here), by max_age, on its way home, or by an operation that was undone:
// once in a window is enough. A drain or an evacuation that went through does not count,
// since the last edge of a rolling restart is filled with those whom it moved.
func (c *conn) movedOfLate() bool {
	s, window := c.session, ceilSeconds(c.loop.edge.settings().Rebalance.Window)
	now := c.loop.seconds()
	return s.handedAt != 0 && now-s.handedAt < window || s.by != 0 && now-s.since < window && c.loop.edge.past.Load().undone[s.by]
}
