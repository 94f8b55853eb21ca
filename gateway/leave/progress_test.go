package leave

import (
	"testing"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func TestARestartedEdgeKeepsWhatItsPredecessorTold(t *testing.T) {
	op := new(gatewayv1.Operation)
	for _, p := range []*gatewayv1.Progress{
		{Edge: "e1", Incarnation: 7, Moved: 60}, {Edge: "e2", Incarnation: 8, Moved: 1},
		{Edge: "e1", Incarnation: 9, Moved: 1}, {Edge: "e1", Incarnation: 9, Moved: 3},
	} {
		putProgress(op, p)
	}
	moved := uint32(0)
	for _, p := range op.Progress {
		moved += p.Moved
	}
	if len(op.Progress) != 3 || moved != 64 {
		t.Errorf("%v", op.Progress)
	}
}
