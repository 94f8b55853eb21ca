package leave

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Governor decides where its edge stands: serving, leaving, evacuated. One goroutine, that
// of Run, turns it:
//
//	           signal, drain ----------------------------> leaving --> end
//	          |                                             |
//	serving --+-- evacuation of its region --> emptying --> held
//	   ^  ^   |                                  |           |
//	   |  |   +-- surplus --> rebalancing --+    |           |
//	   |  +---------------------------------+    |           |
//	   +-------- undrained, aborted, returned ---+-----------+
type Governor struct {
	// immutable after New and AddLoop
	cfg     Config
	deps    Deps
	metrics *metrics
	parts   []*Part

	asking  chan struct{} // a place for each question under way
	wait    sync.WaitGroup
	working context.Context // of questions and records
	stop    context.CancelFunc

	past atomic.Pointer[past] // replaced by Run, read by the loops

	// owned by Run
	records   records
	rebalance rebalancer
}

// New makes a governor; nothing runs before Run.
func New(cfg Config, deps Deps) *Governor {
	g := &Governor{cfg: cfg, deps: deps, metrics: newMetrics(cfg.Registry), asking: make(chan struct{}, maxAsking)}
	g.working, g.stop = context.WithCancel(context.Background())
	g.past.Store(new(past))
	g.records = records{cfg: &g.cfg, operations: deps.Operations, incarnation: deps.Targets.Incarnation, working: g.working, wait: &g.wait}
	return g
}

// AddLoop makes the part of one more loop, before Run.
func (g *Governor) AddLoop(conns Conns) *Part {
	p := &Part{governor: g, id: len(g.parts), conns: conns}
	g.parts = append(g.parts, p)
	return p
}

// Bounds are what ends the governor's work: the signal to leave, the one to end at once,
// a part of the edge that failed.
type Bounds struct{ Leave, Abort, Failing context.Context }

func (b Bounds) over() bool { return b.Abort.Err() != nil || b.Failing.Err() != nil }

// sleep waits a while, or until everything ends.
func (b Bounds) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-b.Abort.Done():
	case <-b.Failing.Done():
	case <-timer.C:
	}
}

// Run governs until the edge has left, in whatever way. It must be called once.
func (g *Governor) Run(b Bounds) {
	defer g.wait.Wait()
	defer g.stop()
	for !b.over() {
		changed := g.records.changed()
		g.lookBack()
		switch op := g.records.mine(); {
		case b.Leave.Err() != nil:
			g.drain(b, op)
			return
		case op == nil:
			g.shareSurplus(b)
		case op.Kind == gatewayv1.OperationKind_OPERATION_KIND_DRAIN:
			if g.drain(b, op) {
				return
			}
		default:
			g.evacuate(b, op)
		}
		g.idle(b, changed)
	}
}

// idle waits for the next reason to look again, a second at most.
func (g *Governor) idle(b Bounds, changed <-chan struct{}) {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-b.Leave.Done():
	case <-b.Failing.Done():
	case <-b.Abort.Done():
	case <-changed:
	case <-timer.C:
	}
}

// depart begins a departure; start is now, end that of the last close.
func (g *Governor) depart(op *gatewayv1.Operation, reason string, opStart, start, end time.Time) *departure {
	d := &departure{
		operation: op.Id, edge: g.cfg.ID, incarnation: g.deps.Targets.Incarnation(), reason: reason, opStart: opStart, start: start,
		parts: make([]share, len(g.parts)), named: g.deps.Targets.AnyTLS(),
	}
	d.setEnd(end)
	return d
}

// toLoops posts an order to each loop.
func (g *Governor) toLoops(order func(i int) Order) {
	for i, p := range g.parts {
		p.conns.Post(order(i))
	}
}

// outcome is how a departure ended.
type outcome uint8

const (
	completed outcome = iota // everybody is gone, or the time is over
	calledOff                // by an operator, or by something more important
	brokenOff                // the process ends at once
)

// drive carries out a plan for all conns of d until they are gone, or its time is over,
// or stop says so. It fills in what cfg does not say.
func (g *Governor) drive(b Bounds, d *departure, cfg drain.Config, stop func(*drain.Plan, time.Time) bool) outcome {
	r := &driver{g: g, b: b, d: d, all: !cfg.GrantedOnly, answers: make(chan *answered, maxAsking)}
	if !r.enroll() {
		return brokenOff
	}
	defer g.toLoops(func(int) Order { return endOrder{d} })
	cfg.Operation, cfg.Edge, cfg.Incarnation, cfg.Region = d.operation, d.edge, d.incarnation, g.cfg.Region
	cfg.Start, cfg.End = time.Now(), d.endTime()
	cfg.OneAddress = !anyAddressed(r.lookAround(cfg.Start))
	r.plan = drain.New(cfg)
	return r.run(stop)
}
