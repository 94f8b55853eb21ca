package drill

import (
	"context"
	"fmt"
	"syscall"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// victim is the edge that the harm is done to.
func (w *world) victim() (id string, err error) {
	if w.c != nil {
		return w.c.Edges()[1].ID, nil
	}
	conns, err := w.conns()
	if err != nil {
		return "", err
	}
	for node, n := range conns {
		if id == "" || n > conns[id] {
			id = node
		}
	}
	if id == "" {
		return "", fmt.Errorf("the cluster has no edge")
	}
	return id, nil
}

// restart ends one edge in order. Its clients are to notice nothing.
func (w *world) restart() error {
	id, err := w.victim()
	if err != nil {
		return err
	}
	if err := w.incident("%s is told to end", id); err != nil {
		return err
	}
	w.report.Figures.Displaced = w.before[id]
	if w.c == nil {
		err = w.drainGiven(id)
	} else {
		err = w.stopEdge(1)
	}
	if err != nil {
		return err
	}
	interrupted := uint64(0)
	if w.o.Policy != "sdk" {
		interrupted = w.report.Figures.Displaced
	}
	if err := w.settle(90*time.Second, interrupted); err != nil {
		return err
	}
	if w.o.Policy == "sdk" {
		w.promiseUninterrupted()
		w.promiseNoTokens()
	} else if every := interval(w.o.Policy); every > 0 {
		w.promiseOutage(every + time.Second)
		w.promiseOthersStay()
	}
	w.promiseGrants()
	w.promiseSettled()
	w.promiseReads()
	return nil
}

// stopEdge sends SIGTERM, follows the drain and waits for the end.
func (w *world) stopEdge(n int) error {
	edge := w.c.Edges()[n]
	if err := edge.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := w.eventually(w.o.Deadline+30*time.Second, edge.ID+" has ended", func() bool {
		w.follow(w.operation("drain", edge.ID))
		return !edge.Running()
	})
	if err != nil {
		return err
	}
	w.step("%s has ended, exit code %d", edge.ID, edge.ExitCode())
	if op := w.op; op != nil {
		w.step("operation %s: %s, %d moved, %d closed, %d stragglers, %d gone of %d; planned %.1f s at %.0f/s %s", op.Id, op.State, op.Moved, op.Closed,
			op.Stragglers, op.Gone, op.Total, float64(op.PlannedMs)/1000, op.GrantedPerSecond, op.Message)
	}
	w.promise(edge.ExitCode() == 0, edge.ID+" ends in order, within its deadline", "exit code %d after %.1f s", edge.ExitCode(), time.Since(w.t0).Seconds())
	return nil
}

// drainGiven does the same to an edge of a given cluster.
func (w *world) drainGiven(id string) error {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	resp, err := w.admin.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: id, DeadlineMs: uint32(w.o.Deadline.Milliseconds())})
	if err != nil {
		return fmt.Errorf("drain %s: %w", id, err)
	}
	w.step("operation %s: %d connections, room for %d, %.1f s planned %s", resp.Operation, resp.Conns, resp.Headroom, float64(resp.PlannedMs)/1000, resp.Message)
	return w.eventually(w.o.Deadline+30*time.Second, "the operation has ended", func() bool {
		w.follow(w.operation("drain", id))
		return w.op != nil && w.op.EndedMs > 0
	})
}

// follow keeps the newest state of an operation, with the plan that it had.
func (w *world) follow(op *routerv1.Operation) {
	if op == nil {
		return
	}
	if before := w.op; before != nil && before.Id == op.Id {
		op.PlannedMs, op.GrantedPerSecond = max(op.PlannedMs, before.PlannedMs), max(op.GrantedPerSecond, before.GrantedPerSecond)
	}
	w.op = op
}
