package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/gateway/admission"
	sdk "github.com/spillway-io/spillway/gateway/client"
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
	eventually(t, "it serves again", func() bool { return f.edges["e1"].edge.Ready() && !f.edges["e1"].edge.draining.Load() })
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

func TestASecondSignalEndsADrainAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	f.crowd("e1", 10).stop()
	f.edges["e1"].leave()
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.draining.Load() })
	start := time.Now()
	f.edges["e1"].hurry()
	f.waitEnd("e1")
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	if op := f.ofEdge("e1"); op == nil || op.State != opFailed || !strings.Contains(op.Message, "ended at once") {
		t.Errorf("the record says %v", op)
	}
}

func TestASecondSignalDoesNotWaitForARegistryThatIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	f.crowd("e1", 10).stop()
	f.set(func() { f.etcdAway = true })
	f.edges["e1"].leave()
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.draining.Load() })
	start := time.Now()
	f.edges["e1"].hurry()
	f.waitEnd("e1")
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}

// The bus is cut before anything is granted: everybody is told without a grant.
func TestADrainWithoutABusGoesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	c := f.crowd("e1", 30)
	f.set(func() { f.busAway = true })
	f.edges["e1"].leave()
	f.waitEnd("e1")
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted though there was room", n)
	}
	if p := f.checkFigures("e1", opDone); p.Moved != 30 || !strings.Contains(p.Message, "the bus is away") {
		t.Errorf("%v", p)
	}
}

// The bus is cut when grants are confirmed: they hold.
func TestABusThatIsCutInTheMiddleTakesNothingBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	c := f.crowd("e1", 60)
	f.edges["e1"].leave()
	eventually(t, "the first have gone", func() bool { return f.conns("e2") > 0 })
	f.set(func() { f.busAway = true })
	f.waitEnd("e1")
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	if p := f.checkFigures("e1", opDone); p.Moved != 60 {
		t.Errorf("%v", p)
	}
}

// Without a router the new conns say `pending`: clients are told to move all the same,
// keep the old conn, and leave it when the verdict has come.
func TestADrainWithoutARouterInterruptsNobody(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	c := f.crowd("e1", 30)
	away := func(on bool) {
		for _, id := range f.names {
			f.edges[id].set(func() { f.edges[id].away = on })
		}
	}
	away(true)
	f.edges["e1"].leave()
	eventually(t, "some are at both edges", func() bool { return f.conns("e2") > 5 })
	if n := c.interruptions(); n != 0 || f.edges["e1"].edge.held() < 25 {
		t.Errorf("%d streams were interrupted, %d conns are left at the old edge", n, f.edges["e1"].edge.held())
	}
	away(false)
	f.waitEnd("e1")
	eventually(t, "all came up elsewhere", func() bool { return f.conns("e2") == 30 })
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	f.checkFigures("e1", opDone)
}

// The registry is away all the time: the drain does not wait for it.
func TestADrainWithoutARegistryGoesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	c := f.crowd("e1", 30)
	f.set(func() { f.etcdAway = true })
	start := time.Now()
	f.edges["e1"].leave()
	f.waitEnd("e1")
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
}

// A target dies in mid-drain, hints to it on the way: those come up at the other.
func TestATargetThatDiesCostsOnlyItsOwnClients(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2", "e3")
	c := f.crowd("e1", 60)
	f.edges["e1"].leave()
	eventually(t, "some went to both", func() bool { return f.conns("e2") > 0 && f.conns("e3") > 0 })
	f.kill("e2")
	f.mourn("e2")
	f.waitEnd("e1")
	eventually(t, "all came up at the last one", func() bool { return f.conns("e3") == 60 })
	c.rest()
	// Who was at e2 when it died was interrupted by that; nobody else.
	if n := c.interruptions(); n > 20 {
		t.Errorf("%d streams were interrupted", n)
	}
	f.checkFigures("e1", opDone)
}

// A deadline that is far too short: nobody is left, and it is kept.
func TestADeadlineThatIsTooShortIsKept(t *testing.T) {
	t.Parallel()
	f := newFleetOf(t, func(id string, c *Config) { c.DrainDeadline = 1 * time.Second }, "e1", "e2")
	c := f.crowd("e1", 300)
	c.stop()
	start := time.Now()
	f.edges["e1"].leave()
	f.waitEnd("e1")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	op := f.ofEdge("e1")
	if op == nil || op.State == opRunning {
		t.Fatalf("the record says %v", op)
	}
	if p := op.Progress[0]; p.Moved+p.Closed+p.Stragglers+p.Gone+p.Remaining != p.Total || p.Total != 300 {
		t.Errorf("%v", p)
	}
	eventually(t, "all came up elsewhere", func() bool { return f.conns("e2") == 300 })
}

// One that ignores the hint is closed over the last tenth, and the record says that
// the drain was done partly. One that leaves before its slot is counted as gone.
func TestClientsThatDoNotObeyAreClosedLast(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	var deaf []*client
	for range 5 {
		c := f.edges["e1"].connect(`,"attempt":1`)
		c.expect(`{"type":"connected"}`)
		deaf = append(deaf, c)
	}
	var early []*client
	for range 5 {
		c := f.edges["e1"].connect("")
		c.expect(`{"type":"connected"}`)
		early = append(early, c)
	}
	start := time.Now()
	f.edges["e1"].leave()
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.draining.Load() })
	for _, c := range early {
		c.conn.Close()
	}
	for _, c := range deaf {
		hint := c.expect(`{"type":"reconnect","reason":"shutdown"}`)
		if hint["url"] != f.members["e2"].Address || hint["ticket"] == nil || hint["after_ms"].(float64) > 2000 {
			t.Errorf("%v", hint)
		}
		if ms := hint["deadline_ms"].(float64); ms < 500 || ms > 10_000 {
			t.Errorf("the hint says that the conn lives %v ms", ms)
		}
	}
	for _, c := range deaf {
		c.expectClose(ws.StatusCode(4001))
		if at := time.Since(start); at < 4*time.Second {
			t.Errorf("closed after %v", at)
		}
		c.conn.Close()
	}
	f.waitEnd("e1")
	// Those who left early may have been gone before the clients were counted.
	if p := f.checkFigures("e1", opPartly); p.Stragglers != 5 || p.Gone+p.Closed != p.Total-5 || p.Total > 10 || p.Closed > 2 {
		t.Errorf("%v", p)
	}
}

func TestWithoutRoomElsewhereItSaysSoAndSpreadsTheCloses(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1")
	c := f.crowd("e1", 20)
	c.stop()
	f.edges["e1"].leave()
	f.waitEnd("e1")
	p := f.checkFigures("e1", opPartly)
	if p.Stragglers != 20 || !strings.Contains(p.Message, "no other edge serves") {
		t.Errorf("%v", p)
	}
}

// Two edges that leave at once never send clients to each other.
func TestEdgesThatLeaveTogetherDoNotPointAtEachOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2", "e3")
	a, b := f.crowd("e1", 30), f.crowd("e2", 30)
	f.edges["e1"].leave()
	f.edges["e2"].leave()
	f.waitEnd("e1")
	f.waitEnd("e2")
	a.rest()
	b.rest()
	if n := a.interruptions() + b.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	if n := f.conns("e3"); n != 60 {
		t.Errorf("%d are at the third", n)
	}
	for _, u := range append(a.users, b.users...) {
		if n := u.Stats().Connects; n != 2 {
			t.Errorf("a client connected %d times", n)
		}
	}
}

func TestAnAbortedEvacuationTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "u1")
	c := f.crowd("e1", 30)
	f.begin(&gatewayv1.Operation{Id: "1-ev", Kind: opEvacuate, State: opRunning, Region: "eu", DeadlineMs: 30_000, StartedMs: uint64(time.Now().UnixMilli())})
	eventually(t, "the first have gone", func() bool { return f.conns("u1") > 2 })
	f.setState("1-ev", opAborted)
	eventually(t, "it serves again", func() bool { return f.edges["e1"].edge.Ready() })
	eventually(t, "the record says how far it had come", func() bool {
		op := f.operation(func(op *gatewayv1.Operation) bool { return doneBy(op, "e1") })
		return op != nil && op.State == opAborted && op.Progress[0].Total == 30 && op.Progress[0].Moved > 0 && op.Progress[0].Remaining > 0
	})
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
}

func TestAnEvacuatedRegionStaysEmptyUntilItIsReturned(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2", "u1", "u2")
	a, b := f.crowd("e1", 30), f.crowd("e2", 30)
	f.begin(&gatewayv1.Operation{Id: "1-ev", Kind: opEvacuate, State: opRunning, Region: "eu", DeadlineMs: 6_000, StartedMs: uint64(time.Now().UnixMilli())})
	eventually(t, "the region is empty", func() bool { return f.conns("u1")+f.conns("u2") == 60 })
	eventually(t, "both edges have said so", func() bool {
		return f.operation(func(op *gatewayv1.Operation) bool { return doneBy(op, "e1") && doneBy(op, "e2") }) != nil
	})
	for _, id := range []string{"e1", "e2"} {
		eventually(t, id+" is empty", func() bool { return f.conns(id) == 0 }) // the last sockets may still be closing
		if f.edges[id].edge.Ready() {
			t.Errorf("%s is ready", id)
		}
	}
	f.edges["e1"].dial("spillway.v1.json").expect(`{"type":"busy"}`)
	f.setState("1-ev", opAborted)
	eventually(t, "both serve again", func() bool { return f.edges["e1"].edge.Ready() && f.edges["e2"].edge.Ready() })
	a.rest()
	b.rest()
	if n := a.interruptions() + b.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
}

// The operator takes a region into service again: whom the evacuation had moved is asked
// home, and nobody is interrupted on either way.
func TestWhoWasEvacuatedIsAskedHomeAfterTheReturn(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2", "u1")
	a, stay := f.crowd("e1", 30), f.crowd("u1", 5)
	f.begin(&gatewayv1.Operation{Id: "1-ev", Kind: opEvacuate, State: opRunning, Region: "eu", DeadlineMs: 6_000, StartedMs: uint64(time.Now().UnixMilli())})
	eventually(t, "the region is empty", func() bool { return f.conns("u1") == 35 && f.conns("e1") == 0 })
	f.setState("1-ev", opDone)
	eventually(t, "they are home", func() bool { return f.conns("e1")+f.conns("e2") == 30 && f.conns("u1") == 5 })
	a.rest()
	stay.rest()
	if n := a.interruptions() + stay.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	for _, u := range stay.users {
		if n := u.Stats().Connects; n != 1 {
			t.Errorf("a client that was at home connected %d times", n)
		}
	}
}

// A drain that is undone has moved clients for nothing; a rebalance does not move them
// back at once. Another one's clients, and those of a drain that went through, may be.
func TestWhoWasMovedByAnUndoneDrainStaysForAWhile(t *testing.T) {
	t.Parallel()
	f := newFleetOf(t, func(id string, c *Config) { c.Rebalance = Rebalance{Ratio: 1.1, Surplus: 5, Window: time.Minute} }, "e1", "e2")
	c := f.crowd("e1", 10)
	f.begin(&gatewayv1.Operation{Id: "1-a", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 100, DeadlineMs: 30_000, Cause: "api"})
	eventually(t, "all have gone", func() bool { return f.conns("e2") == 10 })
	late := func() (n int) {
		l := f.edges["e2"].edge.loops
		done := make(chan int, len(l))
		for _, l := range l {
			l.inbox.post(inspection(func(l *loop) {
				n := 0
				for _, c := range l.slots {
					if c != nil && c.session != nil && c.movedOfLate() {
						n++
					}
				}
				done <- n
			}))
		}
		for range l {
			n += <-done
		}
		return n
	}
	if n := late(); n != 0 {
		t.Errorf("%d may not be moved while it drains", n)
	}
	f.setState("1-a", opAborted)
	eventually(t, "none of them may be surplus", func() bool { return late() == 10 })
	c.rest()
}

// inspection looks at a loop from its own goroutine.
type inspection func(*loop)

func (m inspection) apply(l *loop) { m(l) }

func TestAnOverfullEdgeHandsOverOnlyItsSurplusAndNobodyTwice(t *testing.T) {
	t.Parallel()
	f := newFleetOf(t, func(id string, c *Config) { c.Rebalance = Rebalance{Ratio: 1.1, Surplus: 5, Window: time.Minute} }, "e1", "e2", "e3")
	c := f.crowd("e1", 60)
	eventually(t, "it begins", func() bool { return f.conns("e1") < 60 })
	eventually(t, "each has its share", func() bool { return f.conns("e2") >= 18 && f.conns("e3") >= 18 })
	eventually(t, "the record says that it is done", func() bool {
		op := f.ofEdge("e1")
		return op != nil && op.Kind == opRebalance && op.State == opDone
	})
	c.rest()
	if a := f.conns("e1"); a < 19 || a > 24 {
		t.Errorf("%d stayed", a)
	}
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	for _, u := range c.users {
		if n := u.Stats().Connects; n > 2 {
			t.Errorf("a client was moved %d times", n-1)
		}
		if u.State() != sdk.Connected {
			t.Error("a client is not connected")
		}
	}
}

// While the bus is away the others' figures are of then: an edge that compared itself of
// now with them would find a surplus, and so would all.
func TestNobodyFindsASurplusWhileTheBusIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	e := f.edges["e1"].edge
	if mean, ok := e.regionMean(60); !ok || mean != 30 {
		t.Fatalf("the mean is %d, %t", mean, ok)
	}
	f.set(func() { f.silent["e2"] = true })
	if _, ok := e.regionMean(60); ok {
		t.Error("a mean with an edge that is silent")
	}
	f.set(func() { f.silent["e2"], f.busAway = false, true })
	if _, ok := e.regionMean(60); ok {
		t.Error("a mean without the bus")
	}
}

// Behind one balancer: no edge has an address, the grants are one pot, and clients
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
		if got := counter(t, f.edges[id].edge.metrics.admitted[admission.LaneMoved]); got < 25 {
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
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.draining.Load() })
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
