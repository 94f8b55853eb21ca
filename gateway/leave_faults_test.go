package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
)

func TestASecondSignalEndsADrainAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "e1", "e2")
	f.crowd("e1", 10).stop()
	f.edges["e1"].leave()
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.gate.Leaving() })
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
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.gate.Leaving() })
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
	if n := c.interruptions(); n != 0 || f.edges["e1"].edge.counts.held() < 25 {
		t.Errorf("%d streams were interrupted, %d conns are left at the old edge", n, f.edges["e1"].edge.counts.held())
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
	eventually(t, "it leaves", func() bool { return f.edges["e1"].edge.gate.Leaving() })
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
