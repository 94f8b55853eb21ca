package leave

import (
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Stay is how long a client has been here, and what brought it. Seconds are the loop's.
type Stay struct {
	Since uint32 // when it was welcomed
	// when a rebalance or its age told it to go, or a rebalance brought it here; 0: never
	asked uint32
	by    movedBy // operation that brought it here
	seed  byte    // of its session's id
}

// NewStay begins one: of a session whose id begins with seed, and whose ticket names an
// operation that moved it here; "": none did.
func NewStay(second uint32, operation string, seed byte) Stay {
	s := Stay{Since: second, by: moveOf(operation), seed: seed}
	if strings.HasSuffix(operation, rebalanceSuffix) {
		s.askedNow(second)
	}
	return s
}

func (s *Stay) askedNow(second uint32) { s.asked = max(second, 1) }

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
func (g *Governor) lookBack() {
	p := &past{undone: make(map[movedBy]bool), home: make(map[movedBy]string)}
	for _, op := range g.records.all() {
		evacuation := op.Kind == gatewayv1.OperationKind_OPERATION_KIND_EVACUATE
		switch {
		case op.State == gatewayv1.OperationState_OPERATION_STATE_ABORTED && (evacuation || op.Kind == gatewayv1.OperationKind_OPERATION_KIND_DRAIN):
			p.undone[moveOf(op.Id)] = true
		case op.State == gatewayv1.OperationState_OPERATION_STATE_DONE && evacuation && op.Region != g.cfg.Region:
			p.home[moveOf(op.Id)] = op.Region
		}
	}
	g.past.Store(p)
}

// MovedOfLate says that a client was moved within rebalance.window by a rebalance (away
// from here or to here), by max_age, on its way home, or by an operation that was undone:
// once in a window is enough. A drain or an evacuation that went through does not count,
// since the last edge of a rolling restart is filled with those whom it moved. Only for
// conns that are Movable or Critical.
func (p *Part) MovedOfLate(c Conn) bool {
	s, window := c.Stay(), ceilSeconds(p.governor.deps.Settings().Rebalance.Window)
	_, now := p.conns.Now()
	return s.asked != 0 && now-s.asked < window || s.by != 0 && now-s.Since < window && p.governor.past.Load().undone[s.by]
}

func ceilSeconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second)
}
