package operations

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	// causeAPI is the cause of what this service starts.
	causeAPI = "api"
	// causeSignal is that of an edge that was told to end by its machine.
	causeSignal = "signal"
	// watchEvery is the time between two answers of WatchOperation.
	watchEvery = time.Second
)

// ListOperations returns all that are known, the newest first.
func (s *Service) ListOperations(context.Context, *routerv1.ListOperationsRequest) (*routerv1.ListOperationsResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	response := &routerv1.ListOperationsResponse{}
	for _, op := range slices.Backward(s.control.Operations()) {
		response.Operations = append(response.Operations, s.show(op))
	}
	return response, nil
}

// WatchOperation sends what changed, until the operation has ended.
func (s *Service) WatchOperation(request *routerv1.WatchOperationRequest, stream grpc.ServerStreamingServer[routerv1.WatchOperationResponse]) error {
	if s.control == nil {
		return errNoControl
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var last *routerv1.Operation
	for {
		op := s.control.Operation(request.Operation)
		if op == nil {
			return status.Errorf(codes.NotFound, "operation: %q: there is none", request.Operation)
		}
		if now := s.show(op); !proto.Equal(now, last) {
			if err := stream.Send(&routerv1.WatchOperationResponse{Operation: now}); err != nil {
				return err
			}
			last = now
		}
		if control.Ended(op) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.stop:
			return errStopping
		}
	}
}

// AbortOperation stops a running operation.
func (s *Service) AbortOperation(ctx context.Context, request *routerv1.AbortOperationRequest) (*routerv1.AbortOperationResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	if err := s.abort(ctx, request.Operation); err != nil {
		return nil, err
	}
	return &routerv1.AbortOperationResponse{}, nil
}

// abort ends an operation before its time; an evacuated region that is held goes into
// service again.
func (s *Service) abort(ctx context.Context, id string) error {
	refused := error(nil)
	err := s.control.UpdateOperation(ctx, id, func(op *gatewayv1.Operation) bool {
		switch {
		case control.Ended(op):
			refused = status.Errorf(codes.FailedPrecondition, "operation %s has ended: %s", id, control.StateName(op.State))
		case op.Cause == causeSignal:
			refused = status.Errorf(codes.FailedPrecondition, "operation %s: %s ends because its process was told to", id, op.Node)
		case op.State == gatewayv1.OperationState_OPERATION_STATE_HELD:
			op.State = gatewayv1.OperationState_OPERATION_STATE_DONE
			return true
		default:
			op.State, op.Message = gatewayv1.OperationState_OPERATION_STATE_ABORTED, "aborted by an operator"
			return true
		}
		return false
	})
	return cmp.Or(refused, controlError(err))
}

// show is an operation with its newest figures, as operators see it.
func (s *Service) show(op *gatewayv1.Operation) *routerv1.Operation {
	o := &routerv1.Operation{
		Id: op.Id, Kind: control.KindName(op.Kind), State: control.StateName(op.State), Node: op.Node, Region: op.Region,
		StartedMs: op.StartedMs, EndedMs: op.EndedMs, DeadlineMs: op.DeadlineMs, Cause: op.Cause, Message: op.Message,
		Settlement: showSettlement(s.times.settlement(op)),
	}
	for _, h := range op.Hooks {
		o.Hooks = append(o.Hooks, h.Step+": "+h.Outcome)
	}
	for _, p := range s.progress.of(op) {
		o.Total += p.Total
		o.Moved += p.Moved
		o.Closed += p.Closed
		o.Stragglers += p.Stragglers
		o.Gone += p.Gone
		o.Remaining += p.Remaining
		o.Told += p.Told
		o.Granted += p.Granted
		o.Missing += p.Missing
		o.PlannedMs = max(o.PlannedMs, p.PlannedMs)
		if !p.Ended || op.State != gatewayv1.OperationState_OPERATION_STATE_RUNNING {
			o.GrantedPerSecond += p.GrantedPerSecond
		}
		o.Edges = append(o.Edges, &routerv1.EdgeProgress{
			Edge: p.Edge, Total: p.Total, Moved: p.Moved, Closed: p.Closed, Stragglers: p.Stragglers, Gone: p.Gone,
			Remaining: p.Remaining, Message: p.Message, Ended: p.Ended,
		})
	}
	return o
}
