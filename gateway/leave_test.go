package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	opDrain     = gatewayv1.OperationKind_OPERATION_KIND_DRAIN
	opEvacuate  = gatewayv1.OperationKind_OPERATION_KIND_EVACUATE
	opRebalance = gatewayv1.OperationKind_OPERATION_KIND_REBALANCE
	opRunning   = gatewayv1.OperationState_OPERATION_STATE_RUNNING
	opDone      = gatewayv1.OperationState_OPERATION_STATE_DONE
	opPartly    = gatewayv1.OperationState_OPERATION_STATE_PARTLY
	opFailed    = gatewayv1.OperationState_OPERATION_STATE_FAILED
	opAborted   = gatewayv1.OperationState_OPERATION_STATE_ABORTED
)

// checkFigures wants the record to say how it ended, and its figures to add up.
func (f *fleet) checkFigures(id string, want gatewayv1.OperationState) *gatewayv1.Progress {
	f.t.Helper()
	op := f.ofEdge(id)
	if op == nil || op.State != want || len(op.Progress) != 1 {
		f.t.Fatalf("the record says %v, want %v", op, want)
	}
	p := op.Progress[0]
	if p.Moved+p.Closed+p.Stragglers+p.Gone+p.Remaining != p.Total || !p.Ended {
		f.t.Errorf("figures do not add up: %v", p)
	}
	return p
}

func TestADrainWithRoomInterruptsNobody(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2", "e3")
	c := f.crowd("e1", 60)
	f.edges["e1"].leave()
	f.waitEnd("e1")
	eventually(t, "all came up elsewhere", func() bool { return f.conns("e2")+f.conns("e3") == 60 })
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	p := f.checkFigures("e1", opDone)
	if p.Moved != 60 || p.Closed+p.Stragglers != 0 {
		t.Errorf("%v", p)
	}
	if p.Granted != 60 || p.GrantedPerSecond < 5 || p.PlannedMs == 0 || p.PlannedMs > 10_000 {
		t.Errorf("the record does not keep the plan: %v", p)
	}
	if a, b := f.conns("e2"), f.conns("e3"); a < 20 || b < 20 {
		t.Errorf("%d went to one edge, %d to the other", a, b)
	}
	f.set(func() {
		if p := f.progress["e1"]; p == nil || !p.Ended || p.Moved == 0 || p.Granted != 60 {
			t.Errorf("the bus was told %v", p)
		}
	})
}

// Clients that cannot move are closed one by one; they hear why and with which code.
func TestClientsThatCannotMoveAreClosedOneByOne(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	var clients []*client
	for range 20 {
		c := f.edges["e1"].connect("")
		c.expect(`{"type":"connected"}`)
		clients = append(clients, c)
	}
	start := time.Now()
	f.edges["e1"].leave()
	var at []time.Duration
	closed := make(chan time.Duration, len(clients))
	for _, c := range clients {
		go func() { // ends with its connection
			defer func() { closed <- time.Since(start) }()
			for {
				line, err := c.line()
				switch {
				case err != nil:
					c.conn.Close()
					return
				case strings.Contains(line, `"type":"reconnect"`):
					t.Error("a client that cannot move was told to")
				case !strings.Contains(line, `"close":4001`):
					t.Errorf("got %s", line)
				}
			}
		}()
	}
	for range clients {
		at = append(at, <-closed)
	}
	f.waitEnd("e1")
	for i := 1; i < len(at); i++ {
		if gap := at[i] - at[i-1]; gap > 1500*time.Millisecond {
			t.Errorf("%v between two closes", gap)
		}
	}
	if span := at[len(at)-1] - at[0]; span < 2500*time.Millisecond {
		t.Errorf("all closes came within %v", span)
	}
	if p := f.checkFigures("e1", opDone); p.Closed != 20 || p.Total != 20 {
		t.Errorf("%v", p)
	}
}

func TestADrainByOperationEndsTheProcessAndCanBeUndone(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	c := f.crowd("e1", 30)
	drain := func(id string) {
		f.begin(&gatewayv1.Operation{Id: id, Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 100, DeadlineMs: 30_000, Cause: "api"})
	}
	drain("1-a")
	eventually(t, "the first have gone", func() bool { return f.conns("e2") > 2 })
	if f.edges["e1"].edge.Ready() {
		t.Error("ready while it leaves")
	}
	f.setState("1-a", opAborted)
	eventually(t, "it serves again", func() bool { return f.edges["e1"].edge.Ready() && !f.edges["e1"].edge.gate.Leaving() })
	stayed := f.conns("e1")
	if stayed == 0 {
		t.Error("nobody was left")
	}
	eventually(t, "the record says how far it had come", func() bool {
		op := f.ofEdge("e1")
		return op != nil && op.State == opAborted && len(op.Progress) == 1 && op.Progress[0].Total == 30 && op.Progress[0].Ended
	})
	f.edges["e1"].connect("").expect(`{"type":"connected"}`)
	// Another incarnation's drain is none of its business; its own is.
	f.begin(&gatewayv1.Operation{Id: "2-b", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 7, DeadlineMs: 5_000})
	f.begin(&gatewayv1.Operation{Id: "3-c", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 100, DeadlineMs: 5_000, Cause: "api"})
	f.waitEnd("e1")
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	f.checkFigures("e1", opDone)
}

// An edge that died while it left and came back at once finds the record of the one
// that died in the registry, under its own id, and the drain that was meant for that.
func TestARestartedEdgeIsNotDrainedForTheOneThatDied(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	f.set(func() {
		f.members["e1"].Incarnation = 55
		f.members["e1"].State = gatewayv1.State_STATE_DRAINING
	})
	f.begin(&gatewayv1.Operation{Id: "1-a", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 55, DeadlineMs: 5_000, Cause: "api"})
	c := f.crowd("e1", 5)
	f.begin(&gatewayv1.Operation{Id: "2-b", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 100, DeadlineMs: 5_000, Cause: "api"})
	f.waitEnd("e1")
	c.rest()
	if p := f.progress["e1"]; p == nil || p.Operation != "2-b" || p.Total != 5 {
		t.Errorf("it left for %v", p)
	}
}

// Behind one balancer: no edge has an address, the grants are one allowance, and clients
// land wherever the balancer sends them.
func TestBehindOneAddressADrainInterruptsNobody(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2", "e3")
	f.set(func() {
		for _, m := range f.members {
			m.Address = ""
		}
	})
	c := f.crowd("e1", 60)
	f.edges["e1"].leave()
	f.waitEnd("e1")
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	if p := f.checkFigures("e1", opDone); p.Moved != 60 {
		t.Errorf("%v", p)
	}
	for _, id := range []string{"e2", "e3"} {
		if got := f.edges[id].metric("admitted_total", admission.LaneMoved.String()); got < 25 {
			t.Errorf("%s admitted %v by the moved lane", id, got)
		}
	}
}

// A signal in the middle of a long drain: its own, shorter deadline holds.
func TestASignalHurriesADrainByOperation(t *testing.T) {
	t.Parallel()
	f := newFleetOf(t, func(_ string, c *Config) { c.DrainDeadline = 4 * time.Second }, "e1", "e2")
	c := f.crowd("e1", 60)
	f.begin(&gatewayv1.Operation{Id: "1-a", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 100, DeadlineMs: 600_000, Cause: "api"})
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.gate.Leaving() })
	f.edges["e1"].leave()
	start := time.Now()
	f.waitEnd("e1")
	if took := time.Since(start); took > 6*time.Second {
		t.Errorf("it took %v", took)
	}
	eventually(t, "all came up elsewhere", func() bool { return f.conns("e2") == 60 })
	c.stop()
	if op := f.ofEdge("e1"); op.State == opRunning {
		t.Errorf("the record says %v", op)
	}
}

// Past max_age clients are asked to move on; nobody is interrupted, nobody is closed.
func TestConnectionsPastTheirAgeMoveOn(t *testing.T) {
	t.Parallel()
	f := newFleetOf(t, func(id string, c *Config) {
		if id == "e1" {
			c.Rebalance.MaxAge = 2 * time.Second
		}
	}, "e1", "e2")
	c := f.crowd("e1", 20)
	eventually(t, "all have moved on", func() bool { return f.conns("e2") == 20 && f.conns("e1") == 0 })
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
}
