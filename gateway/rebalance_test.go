package gateway

import (
	"slices"
	"testing"
	"time"

	sdk "github.com/spillway-io/spillway/gateway/client"
	"github.com/spillway-io/spillway/gateway/settings"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

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

func doneBy(op *gatewayv1.Operation, edge string) bool {
	return slices.ContainsFunc(op.Progress, func(p *gatewayv1.Progress) bool { return p.Edge == edge && p.Ended })
}

// A drain that is undone has moved clients for nothing; a rebalance does not move them
// back at once. Another one's clients, and those of a drain that went through, may be.
func TestWhoWasMovedByAnUndoneDrainStaysForAWhile(t *testing.T) {
	t.Parallel()
	f := newFleetOf(t, func(id string, c *Config) {
		c.Rebalance = settings.Rebalance{Ratio: 1.1, Surplus: 5, Window: time.Minute}
	}, "e1", "e2")
	c := f.crowd("e1", 10)
	f.begin(&gatewayv1.Operation{Id: "1-a", Kind: opDrain, State: opRunning, Node: "e1", Incarnation: 100, DeadlineMs: 30_000, Cause: "api"})
	eventually(t, "all have gone", func() bool { return f.conns("e2") == 10 })
	late := func() (n int) {
		l := f.edges["e2"].edge.loops
		done := make(chan int, len(l))
		for _, l := range l {
			l.inbox.Post(inspection(func(l *loop) {
				n := 0
				for _, c := range l.slots {
					if c != nil && c.session != nil && l.leaving.MovedOfLate(leaves(c)) {
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
	f := newFleetOf(t, func(id string, c *Config) {
		c.Rebalance = settings.Rebalance{Ratio: 1.1, Surplus: 5, Window: time.Minute}
	}, "e1", "e2", "e3")
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
	if mean, ok := e.targets.Mean(60, false); !ok || mean != 30 {
		t.Fatalf("the mean is %d, %t", mean, ok)
	}
	f.set(func() { f.silent["e2"] = true })
	if _, ok := e.targets.Mean(60, false); ok {
		t.Error("a mean with an edge that is silent")
	}
	f.set(func() { f.silent["e2"], f.busAway = false, true })
	if _, ok := e.targets.Mean(60, false); ok {
		t.Error("a mean without the bus")
	}
}
