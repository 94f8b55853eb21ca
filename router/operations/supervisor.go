package operations

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// superviseEvery is the time between two looks at all operations.
	superviseEvery = time.Second
	// absentFor is how long an edge must have been away before its part in an operation
	// is over: it ends its record before it deregisters.
	absentFor = 10 * time.Second
	// maxHookCalls bounds the operations whose hooks are called at a time.
	maxHookCalls = 4
)

// supervisor does for operations what no edge can: it ends those whose edges are
// gone, holds a region that is empty, and calls hooks. Each operation is supervised
// by the router that rendezvous gives it; all that it knows stands in the record and
// on the bus, so any other may go on.
type supervisor struct {
	*Service
	now   func() time.Time
	calls sync.WaitGroup // goroutines that call hooks

	// owned by run's goroutine
	absent map[string]time.Time // operation + edge: since when it is not a member

	mu      sync.Mutex // guards below
	calling map[string]bool
}

func newSupervisor(s *Service) *supervisor {
	return &supervisor{Service: s, now: s.cfg.Now, absent: make(map[string]time.Time), calling: make(map[string]bool)}
}

// run looks at what is live until ctx ends.
func (s *supervisor) run(ctx context.Context) error {
	ticker := time.NewTicker(superviseEvery)
	defer ticker.Stop()
	defer s.calls.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.look(ctx)
		}
	}
}

func (s *supervisor) look(ctx context.Context) {
	all := s.control.Operations()
	known := make(map[string]bool, len(all))
	seen := make(map[string]bool)
	for _, op := range all {
		known[op.Id] = true
		if !s.mine(op.Id) {
			continue
		}
		figures := s.progress.of(op)
		if op.State == gatewayv1.OperationState_OPERATION_STATE_RUNNING {
			s.judge(ctx, op, figures, seen)
		}
		s.keepSettlement(ctx, op)
		if step := dueStep(op, figures); step != "" {
			s.callHooks(ctx, op, step, figures)
		}
	}
	maps.DeleteFunc(s.absent, func(key string, _ time.Time) bool { return !seen[key] })
	s.progress.forget(func(id string) bool { return known[id] })
}

// mine says that this router supervises an operation.
func (s *supervisor) mine(id string) bool {
	return s.cluster.owner("operation:"+id) == s.cfg.ID
}

// judge ends a running operation at which nobody works any more.
func (s *supervisor) judge(ctx context.Context, op *gatewayv1.Operation, figures []*gatewayv1.Progress, seen map[string]bool) {
	state, message := s.verdict(op, figures, seen)
	if state == gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED {
		return
	}
	err := s.control.UpdateOperation(ctx, op.Id, func(op *gatewayv1.Operation) bool {
		if op.State != gatewayv1.OperationState_OPERATION_STATE_RUNNING {
			return false
		}
		op.State, op.Message, op.Progress = state, message, s.progress.parts(op)
		return true
	})
	if err != nil {
		s.log.Debug("could not end an operation; trying on", "operation", op.Id, "err", err)
		return
	}
	s.log.Info("operation ended", "operation", op.Id, "state", control.StateName(state), "message", message)
}

// verdict is the state that a running operation should go to; unspecified: none.
func (s *supervisor) verdict(op *gatewayv1.Operation, figures []*gatewayv1.Progress, seen map[string]bool) (gatewayv1.OperationState, string) {
	last := make(map[string]*gatewayv1.Progress, len(figures))
	for _, p := range figures {
		last[p.Edge] = p
	}
	if op.Kind == gatewayv1.OperationKind_OPERATION_KIND_EVACUATE {
		return s.evacuationVerdict(op, last, seen)
	}
	p := last[op.Node]
	switch {
	case !s.gone(op, op.Node, op.Incarnation, seen):
		return gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED, ""
	case p == nil || !p.Ended:
		return gatewayv1.OperationState_OPERATION_STATE_FAILED, "the edge is gone and did not say how it ended"
	case p.Stragglers > 0:
		return gatewayv1.OperationState_OPERATION_STATE_PARTLY, p.Message
	}
	return gatewayv1.OperationState_OPERATION_STATE_DONE, p.Message
}

// evacuationVerdict holds a region when all its edges have ended their part or are
// gone.
func (s *supervisor) evacuationVerdict(op *gatewayv1.Operation, last map[string]*gatewayv1.Progress, seen map[string]bool) (gatewayv1.OperationState, string) {
	var total, moved, closed, stragglers, stay, away uint32
	for _, m := range s.cluster.edgesOf(op.Region) {
		if last[m.Id] == nil || !last[m.Id].Ended {
			return gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED, ""
		}
	}
	lost := 0
	for id, p := range last {
		if !p.Ended {
			if !s.gone(op, id, 0, seen) {
				return gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED, ""
			}
			lost++
		}
		total, moved, closed, stragglers = total+p.Total, moved+p.Moved, closed+p.Closed, stragglers+p.Stragglers
		if p.Ended && s.cluster.serves(id) {
			stay += p.Remaining
		} else {
			away += p.Remaining // a drain of that edge has them, or nobody
		}
	}
	if len(last) == 0 && !s.gone(op, "", 0, seen) {
		return gatewayv1.OperationState_OPERATION_STATE_UNSPECIFIED, "" // edges that have just started may not have spoken
	}
	took := s.now().Sub(time.UnixMilli(int64(op.StartedMs))).Round(time.Second)
	message := fmt.Sprintf("%d of %d clients moved in %v, %d closed, %d stragglers", moved, total, took, closed, stragglers)
	if stay > 0 {
		message += fmt.Sprintf("; %d had no room elsewhere and stay", stay)
	}
	if away > 0 {
		message += fmt.Sprintf("; %d were at edges that left or died", away)
	}
	if lost > 0 {
		message += fmt.Sprintf("; %d edges died on the way", lost)
	}
	return gatewayv1.OperationState_OPERATION_STATE_HELD, message
}

// gone says that an edge has not been a member for a while.
func (s *supervisor) gone(op *gatewayv1.Operation, edge string, incarnation uint64, seen map[string]bool) bool {
	key := op.Id + " " + edge
	m := s.cluster.member(edge)
	if m != nil && (incarnation == 0 || m.Incarnation == incarnation) {
		return false
	}
	seen[key] = true
	now := s.now()
	if since, known := s.absent[key]; known {
		return now.Sub(since) >= absentFor
	}
	s.absent[key] = now
	return false
}

// callHooks calls the hooks of one step in the background and writes down what came
// of it. A router that dies between the two has its successor call again.
func (s *supervisor) callHooks(ctx context.Context, op *gatewayv1.Operation, step string, figures []*gatewayv1.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calling[op.Id] || len(s.calling) >= maxHookCalls {
		return
	}
	s.calling[op.Id] = true
	// It ends with its tries or ctx; run waits for it.
	s.calls.Go(func() {
		calls := s.hooks.call(ctx, op, step, figures)
		for _, c := range calls {
			s.log.Info("hook called", "operation", op.Id, "step", step, "url", c.Url, "outcome", c.Outcome)
		}
		err := s.control.UpdateOperation(ctx, op.Id, func(op *gatewayv1.Operation) bool {
			op.Hooks = append(op.Hooks, calls...)
			return true
		})
		if err != nil {
			s.log.Warn("could not write down that hooks were called; they will be called again", "operation", op.Id, "step", step, "err", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calling, op.Id)
	})
}
