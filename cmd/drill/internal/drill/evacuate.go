package drill

import (
	"context"
	"fmt"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const fromRegion = "east" // its edges have even numbers: see edgeConfig

// evacuate empties one region into the other: first aborted in the middle, then to the
// end.
func (w *world) evacuate() error {
	if err := w.incident("region %s is to be emptied into the other one in %v", fromRegion, w.o.Window); err != nil {
		return err
	}
	w.report.Figures.Displaced = w.inRegion(w.before)
	resp, err := w.startEvacuation(true)
	if err != nil {
		return err
	}
	w.step("pre-check: %d connections, room for %d, %.0f/s needed, %.0f/s granted; fits: %v %s", resp.Conns, resp.Headroom,
		resp.NeededPerSecond, resp.PerSecond, resp.Fits, resp.Message)
	w.promise(resp.Fits && resp.Operation == "", "the pre-check says that it fits, and changes nothing", "fits %v", resp.Fits)
	if err := w.abortHalfway(); err != nil {
		return err
	}
	if err := w.wholeEvacuation(); err != nil {
		return err
	}
	if err := w.settle(60*time.Second, 0); err != nil {
		return err
	}
	w.promiseUninterrupted()
	w.promiseNoTokens()
	w.promiseLanes(laneMoved, float64(w.o.Admission.Moved), slack(float64(w.o.Admission.Moved)))
	left := w.inRegion(w.report.Figures.Conns)
	w.promise(left == 0, "the region is empty", "%d connections are left", left)
	over := uint64(0)
	for node, n := range w.report.Figures.Conns {
		if n > uint64(w.o.MaxConns) {
			over++
			w.step("%s holds %d", node, n)
		}
	}
	w.promise(over == 0, "no edge holds more than it may", "%d edges do, %v", over, w.report.Figures.Conns)
	return nil
}

// inRegion sums the connections of the region that is emptied.
func (w *world) inRegion(conns map[string]uint64) (n uint64) {
	for i, e := range w.c.Edges() {
		if i%2 == 0 {
			n += conns[e.ID]
		}
	}
	return n
}

func (w *world) startEvacuation(dry bool) (*routerv1.EvacuateResponse, error) {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	resp, err := w.admin.Evacuate(ctx, &routerv1.EvacuateRequest{Region: fromRegion, WindowMs: uint32(w.o.Window.Milliseconds()), DryRun: dry})
	if err != nil {
		return nil, fmt.Errorf("evacuate: %w", err)
	}
	return resp, nil
}

// abortHalfway starts it and stops it when a third has moved.
func (w *world) abortHalfway() error {
	resp, err := w.startEvacuation(false)
	if err != nil {
		return err
	}
	third := w.report.Figures.Displaced / 3
	err = w.eventually(w.o.Window+30*time.Second, "a third has moved", func() bool {
		r, err := w.gen.Report(w.ctx)
		return err == nil && r.Phase.Moved >= third
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	if _, err := w.admin.AbortOperation(ctx, &routerv1.AbortOperationRequest{Operation: resp.Operation}); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	r, err := w.gen.Report(w.ctx)
	if err != nil {
		return err
	}
	w.step("aborted when %d had moved", r.Phase.Moved)
	if err := w.pause(6 * time.Second); err != nil {
		return err
	}
	after, err := w.gen.Report(w.ctx)
	if err != nil {
		return err
	}
	more := after.Phase.Moved - r.Phase.Moved
	told := uint64(w.o.Admission.Moved*w.o.Edges/2) * 3 // those who had their hint: 2 s ahead at most
	w.promise(more <= told, "an abort stops the moving", "%d moved after it", more)
	return nil
}

func (w *world) wholeEvacuation() error {
	resp, err := w.startEvacuation(false)
	if err != nil {
		return err
	}
	w.op = nil
	err = w.eventually(w.o.Window+60*time.Second, "the region is evacuated", func() bool {
		w.follow(w.find(resp.Operation))
		return w.op != nil && w.op.State != "running"
	})
	if err != nil {
		return err
	}
	op := w.op
	w.step("operation %s: %s, %d moved, %d closed, %d stragglers of %d %s", op.Id, op.State, op.Moved, op.Closed, op.Stragglers, op.Total, op.Message)
	return nil
}

// find is an operation by its id; nil: there is none.
func (w *world) find(id string) *routerv1.Operation {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	resp, err := w.admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	if err != nil {
		return nil
	}
	for _, op := range resp.Operations {
		if op.Id == id {
			return op
		}
	}
	return nil
}
