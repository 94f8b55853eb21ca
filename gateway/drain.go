package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/gateway/load"
	"github.com/spillway-io/spillway/presence/control"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// outcome is how a handover ended.
type outcome uint8

const (
	handedOver outcome = iota // everybody is gone, or the time is over
	calledOff                 // by an operator, or by something more important
	brokenOff                 // the process ends at once
)

// leave hands all clients to other edges (design: Leave) and returns true when the
// process may end; false: it was called off, and the edge serves again. op is nil
// for a signal; the deadline counts from here.
func (e *Edge) leave(b bounds, op *gatewayv1.Operation) (ended bool) {
	start := time.Now()
	within := e.settings().DrainDeadline
	if op == nil || op.Kind != gatewayv1.OperationKind_OPERATION_KIND_DRAIN {
		op = e.recordSignal(start, within)
	} else if op.DeadlineMs > 0 {
		within = time.Duration(op.DeadlineMs) * time.Millisecond
	}
	e.shut()
	e.log.Info("draining", "operation", op.Id, "cause", op.Cause, "conns", e.counts.conns.Load(), "deadline", within)
	undone := func() bool { return b.leave.Err() == nil && e.aborted(op.Id) }
	deadline := start.Add(within)
	end := e.lastClose(start, within)
	if !e.notice(b, min(e.settings().DrainNotice, within/2), undone) {
		if b.over() {
			e.recordBroken(op, nil)
			return true
		}
		e.reopen()
		return false
	}
	h := e.newHandover(op, start, time.Now(), end)
	hurried := false
	out := e.hand(b, h, drain.Config{}, func(p *drain.Plan, now time.Time) bool {
		if b.leave.Err() != nil && !hurried {
			// A signal in the middle: its own deadline holds from now on.
			hurried = true
			if soon := e.lastClose(now, e.settings().DrainDeadline); soon.Before(h.endTime()) {
				p.Hurry(now, soon)
				h.setEnd(soon)
				deadline = now.Add(e.settings().DrainDeadline)
			}
		}
		return undone()
	})
	switch out {
	case brokenOff:
		e.recordBroken(op, h)
		return true
	case calledOff:
		e.log.Info("the drain was called off", "operation", op.Id)
		e.reopen()
		e.recordEnd(op, h, unended)
		return false
	}
	e.waitForCloses(b, deadline)
	e.recordEnd(op, h, nil)
	if e.figures(h, start, true).Total > 0 {
		e.endWindow(b)
	}
	return true
}

// endWindow waits until the window of the last closes is whole: membership says a last
// load figure when the edge has ended, and what it does not tell is never known.
func (e *Edge) endWindow(b bounds) {
	timer := time.NewTimer(load.WindowLength)
	defer timer.Stop()
	select {
	case <-b.abort.Done():
	case <-b.failing.Done():
	case <-timer.C:
	}
}

// lastClose leaves the closes and the farewell their part of the deadline.
func (e *Edge) lastClose(start time.Time, within time.Duration) time.Time {
	return start.Add(max(within-min(e.cfg.CloseWait, within/5)-min(time.Second, within/10), drain.Step))
}

// notice waits for balancers to see /readyz, and new clients are refused meanwhile.
// false: called off, or everything ends.
func (e *Edge) notice(b bounds, d time.Duration, undone func() bool) bool {
	ticker := time.NewTicker(drain.Step)
	defer ticker.Stop()
	for until := time.Now().Add(d); time.Now().Before(until); {
		select {
		case <-b.abort.Done():
			return false
		case <-b.failing.Done():
			return false
		case <-ticker.C:
		}
		if undone() {
			return false
		}
	}
	return !b.over() && !undone()
}

func (e *Edge) newHandover(op *gatewayv1.Operation, opStart, start, end time.Time) *handover {
	h := &handover{
		operation: op.Id, kind: op.Kind, cause: op.Cause, reason: "shutdown", opStart: opStart, start: start,
		parts: make([]handoverPart, len(e.loops)),
	}
	for _, m := range e.members.Snapshot().Edges() {
		h.named = h.named || m.Id != e.cfg.ID && endsTLS(m.Address)
	}
	h.setEnd(end)
	return h
}

// hand carries out a plan for all conns of h until they are gone, or its time is over,
// or stop says so. It fills in what cfg does not say.
func (e *Edge) hand(b bounds, h *handover, cfg drain.Config, stop func(*drain.Plan, time.Time) bool) outcome {
	if !e.enlist(b, h) {
		return brokenOff
	}
	defer e.toLoops(func(int) message { return endHanding{h} })
	e.governor.seen = time.Time{}
	cfg.Operation, cfg.Edge, cfg.Incarnation, cfg.Region = h.operation, e.cfg.ID, e.targets.Incarnation(), e.cfg.Region
	cfg.Start, cfg.End = time.Now(), h.endTime()
	cfg.OneAddress = !anyAddressed(e.lookAround(h, cfg.Start))
	p := drain.New(cfg)
	ticker := time.NewTicker(drain.Step)
	defer ticker.Stop()
	said := time.Time{}
	for {
		select {
		case <-b.abort.Done():
			return brokenOff
		case <-b.failing.Done():
			return brokenOff
		case a := <-e.governor.answers:
			if a.h == h {
				e.obey(h, a.tell(p, time.Now()))
			}
			continue
		case <-ticker.C:
		}
		now := time.Now()
		h.note(p) // before it hands out what it has
		stopped := stop(p, now)
		gone := h.remaining() == 0 && (cfg.GrantedOnly || e.counts.held() == 0)
		if stopped || gone {
			e.obey(h, p.Stop(now))
			e.sayProgress(h, p, now, true)
			if stopped {
				return calledOff
			}
			return handedOver
		}
		e.obey(h, p.Tick(now, h.counts(), e.lookAround(h, now)))
		over := !now.Before(h.endTime())
		if over || now.Sub(said) >= time.Second {
			said = now
			e.sayProgress(h, p, now, over)
		}
		if over {
			return handedOver
		}
	}
}

// lookAround is the picture of the others, a moment old at most.
func (e *Edge) lookAround(h *handover, now time.Time) []drain.Receiver {
	if g := e.governor; now.Sub(g.seen) >= lookAround {
		g.received, g.seen = e.targets.Edges(h.below), now
	}
	return e.governor.received
}

func anyAddressed(all []drain.Receiver) bool {
	for _, r := range all {
		if r.Addressed && !r.Draining && !r.Silent {
			return true
		}
	}
	return false
}

// enlist has the loops look at their conns; false: everything ends.
func (e *Edge) enlist(b bounds, h *handover) bool {
	done := make(chan struct{}, len(e.loops))
	e.toLoops(func(int) message { return &enlisting{h: h, done: done} })
	for range e.loops {
		select {
		case <-done:
		case <-b.abort.Done():
			return false
		case <-b.failing.Done():
			return false
		}
	}
	return true
}

func (e *Edge) toLoops(m func(i int) message) {
	for i, l := range e.loops {
		l.inbox.Post(m(i))
	}
}

// obey does what a plan says.
func (e *Edge) obey(h *handover, actions []drain.Action) {
	for _, a := range actions {
		switch a.Kind {
		case drain.Ask:
			e.ask(h, a.To, &gatewayv1.PeerRequest{Request: &gatewayv1.PeerRequest_Grant{Grant: a.Request}})
		case drain.Confirm:
			if h.named && a.Keep.Movable+a.Keep.Unmovable > 0 && endsTLS(e.targets.Address(a.To)) {
				a.Keep.Sources = h.sources.list()
			}
			e.ask(h, a.To, &gatewayv1.PeerRequest{Request: &gatewayv1.PeerRequest_Confirm{Confirm: a.Keep}})
		case drain.Move:
			e.orderMoves(h, a)
		case drain.Close:
			e.orderCloses(h, classUnmovable, a.Count)
		case drain.CloseTold:
			e.orderCloses(h, classTold, a.Count)
		case drain.CloseAll:
			e.toLoops(func(int) message { return &closeAllOrder{h: h} })
		case drain.Recall:
			e.toLoops(func(int) message { return recallOrder{h, a.To} })
		}
	}
	if h.all(classBare) > 0 {
		e.toLoops(func(int) message { return graceOrder{h} })
	}
}

func (e *Edge) orderMoves(h *handover, a drain.Action) {
	orders := make([]*moveOrder, len(e.loops))
	loops, of := h.share(a.Count, classCritical, classPlain)
	for i, l := range loops {
		if orders[l] == nil {
			// Without a grant one with headroom is as good as another.
			url := e.targets.Likely(e.governor.received)
			if a.To != "" {
				url = e.targets.Address(a.To)
			}
			orders[l] = &moveOrder{h: h, target: a.To, url: url, grant: a.Granted, grace: a.Grace}
		}
		orders[l].slots = append(orders[l].slots, a.First.Add(time.Duration(i)*a.Every))
		orders[l].of = append(orders[l].of, of[i])
	}
	for l, m := range orders {
		if m != nil {
			e.loops[l].inbox.Post(m)
		}
	}
}

func (e *Edge) orderCloses(h *handover, k class, n int) {
	counts := make([]int, len(e.loops))
	loops, _ := h.share(n, k)
	for _, l := range loops {
		counts[l]++
	}
	for l, n := range counts {
		if n > 0 {
			e.loops[l].inbox.Post(&closeOrder{h: h, n: n, k: k})
		}
	}
}

// waitForCloses gives the clients' halves of the last closes their time, and what
// other edges are told.
func (e *Edge) waitForCloses(b bounds, deadline time.Time) {
	ticker := time.NewTicker(drain.Step)
	defer ticker.Stop()
	for e.counts.held() > 0 && time.Now().Before(deadline) {
		select {
		case <-b.abort.Done():
			return
		case <-b.failing.Done():
			return
		case <-ticker.C:
		}
	}
}

// recordSignal makes a record of a drain that a signal began, in the background: the
// registry may be away, and the drain does not wait for it.
func (e *Edge) recordSignal(start time.Time, within time.Duration) *gatewayv1.Operation {
	op := &gatewayv1.Operation{
		Id: control.NewOperationID(start), Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN,
		State: gatewayv1.OperationState_OPERATION_STATE_RUNNING, Node: e.cfg.ID, Incarnation: e.targets.Incarnation(), Region: e.cfg.Region,
		StartedMs: uint64(start.UnixMilli()), DeadlineMs: uint32(within.Milliseconds()), Cause: "signal",
	}
	e.record(op)
	return op
}

// record writes a new operation in the background.
func (e *Edge) record(op *gatewayv1.Operation) {
	if e.operations == nil {
		return
	}
	written := make(chan struct{})
	e.governor.recording = written
	e.governor.wait.Go(func() { // ends with the write, or with the callers; Run waits for it
		defer close(written)
		ctx, cancel := context.WithTimeout(e.working, recordWithin)
		defer cancel()
		if err := e.operations.PutOperation(ctx, op); err != nil {
			e.log.Warn("could not record the operation; it goes on", "operation", op.Id, "err", err)
		}
	})
}

// unended leaves the state of an operation to others: it has ended already, or a
// router says when all edges are done.
func unended(*gatewayv1.Operation) {}

// recordEnd writes the last figures of this edge into the record, best effort. more
// may change the record besides.
func (e *Edge) recordEnd(op *gatewayv1.Operation, h *handover, more func(*gatewayv1.Operation)) {
	last := e.figures(h, time.Now(), true)
	e.log.Info("handed over", "operation", op.Id, "moved", last.Moved, "closed", last.Closed, "stragglers", last.Stragglers,
		"gone", last.Gone, "remaining", last.Remaining, "message", h.message)
	e.updateRecord(op.Id, recordWithin, func(op *gatewayv1.Operation) {
		putProgress(op, last)
		if more != nil {
			more(op)
			return
		}
		op.State, op.Message = h.state(last), h.message
	})
}

// recordBroken says in the record that this edge ends in the middle of a drain or a
// rebalance of its own: a router would find out ten seconds later. The end does not
// wait for a registry that does not answer. h is nil if it had not begun.
func (e *Edge) recordBroken(op *gatewayv1.Operation, h *handover) {
	left := e.counts.conns.Load()
	e.updateRecord(op.Id, brokenWithin, func(op *gatewayv1.Operation) {
		if control.Ended(op) {
			return
		}
		if h != nil {
			putProgress(op, e.figures(h, time.Now(), true))
		}
		op.State = gatewayv1.OperationState_OPERATION_STATE_FAILED
		op.Message = fmt.Sprintf("the edge was ended at once, with %d connections", left)
	})
}

// updateRecord changes the record of an operation, best effort.
func (e *Edge) updateRecord(id string, within time.Duration, change func(*gatewayv1.Operation)) {
	if e.operations == nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.working, within)
	defer cancel()
	if written := e.governor.recording; written != nil {
		select {
		case <-written:
		case <-ctx.Done():
		}
	}
	err := e.operations.UpdateOperation(ctx, id, func(op *gatewayv1.Operation) bool { change(op); return true })
	if err != nil {
		e.log.Warn("could not record the end of the operation", "operation", id, "err", err)
	}
}
