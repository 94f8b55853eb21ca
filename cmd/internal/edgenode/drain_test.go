package edgenode

import (
	"context"
	"fmt"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// A drain that an operator starts at a router reaches the edge by etcd; room is granted
// over the bus; the client goes where the balancer (here: the test) sends it; the
// node ends by itself and the record says how.
func TestADrainByOperationOverARealBus(t *testing.T) {
	p := newPair(t)
	u, _ := p.connect(p.one, fmt.Sprintf(`"token":%q,"attempt":1`, token(t, "ann")))
	var operation string
	p.call(func(ctx context.Context) error {
		r, err := p.admin.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: "edge-1", DeadlineMs: 6_000})
		operation = r.GetOperation()
		return err
	})
	hint := u.next()
	if hint["type"] != "reconnect" || hint["url"] != nil || hint["ticket"] == nil {
		t.Fatalf("got %v", hint)
	}
	u.alive() // until it has gone
	next, hello := p.connect(p.two, fmt.Sprintf(`"ticket":%q,"attempt":2`, hint["ticket"]))
	if hello["resumed"] != true {
		t.Errorf("got %v", hello)
	}
	if err := wsutil.WriteClientMessage(u.conn, ws.OpClose, ws.NewCloseFrameBody(1000, "")); err != nil {
		t.Error(err)
	}
	u.conn.Close()
	key := presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: "edge-1"}
	eventually(t, "the edge has left", func() bool { return p.two.Members().Member(key) == nil })
	var op *gatewayv1.Operation
	eventually(t, "the record says that it is done", func() bool {
		op = p.two.control.Operation(operation)
		return op.GetState() == gatewayv1.OperationState_OPERATION_STATE_DONE
	})
	if len(op.Progress) != 1 || op.Progress[0].Moved != 1 || op.Progress[0].Total != 1 {
		t.Errorf("the record says %v", op)
	}
	next.alive()
}
