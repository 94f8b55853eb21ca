package operations

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// maxDeadline bounds what an operator may ask for.
const maxDeadline = time.Hour

// DrainNode starts the leaving of an edge.
func (s *Service) DrainNode(ctx context.Context, request *routerv1.DrainNodeRequest) (*routerv1.DrainNodeResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	if time.Duration(request.DeadlineMs)*time.Millisecond > maxDeadline {
		return nil, invalid("deadline_ms", fmt.Sprintf("%d: at most %d", request.DeadlineMs, maxDeadline.Milliseconds()))
	}
	m, err := s.cluster.edge(request.Node)
	if err != nil {
		return nil, err
	}
	if op := s.cluster.drain(m); op != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "node: %s is leaving already: operation %s", m.Id, op.Id)
	}
	if m.State == gatewayv1.State_STATE_DRAINING && !s.cluster.evacuated(m.Region) {
		return nil, status.Errorf(codes.FailedPrecondition, "node: %s is leaving already", m.Id)
	}
	response := s.planDrain(m, time.Duration(request.DeadlineMs)*time.Millisecond)
	if request.DryRun {
		return response, nil
	}
	op := &gatewayv1.Operation{
		Kind: gatewayv1.OperationKind_OPERATION_KIND_DRAIN, Node: m.Id, Incarnation: m.Incarnation, Region: m.Region,
		DeadlineMs: request.DeadlineMs, Cause: causeAPI,
	}
	if err := s.control.PutOperation(ctx, op); err != nil {
		return nil, controlError(err)
	}
	s.log.Info("drain began", "operation", op.Id, "node", m.Id)
	response.Operation = op.Id
	return response, nil
}

// planDrain says what is known beforehand.
func (s *Service) planDrain(m *presence.Member, deadline time.Duration) *routerv1.DrainNodeResponse {
	room := s.cluster.receivers(func(other *presence.Member) bool { return other.Region == m.Region && other.Id != m.Id })
	response := &routerv1.DrainNodeResponse{Headroom: room.headroom, PerSecond: room.rate()}
	f := figureOf(s.cluster.members.Figures(), m)
	if f == nil {
		response.Message = "nothing has been heard of this edge yet"
		return response
	}
	response.Conns = f.Conns
	planned := takes(f.Conns, response.PerSecond)
	response.PlannedMs = uint32(min(planned.Milliseconds(), math.MaxUint32))
	// Who has no room in the region goes to others.
	away := s.cluster.receivers(func(other *presence.Member) bool {
		return other.Region != m.Region && !s.cluster.evacuated(other.Region)
	})
	foreign := away.headroom * uint64(s.cfg.ForeignPercent) / 100
	switch {
	case f.Conns == 0:
	case room.edges+away.edges == 0:
		response.Message = "no other edge serves: all clients will be closed, spread over the deadline"
	case f.Conns > room.headroom+foreign:
		response.Message = fmt.Sprintf("%d clients do not fit: the other edges of region %q have room for %d, other regions for %d; the rest will be closed, spread over the deadline",
			f.Conns, m.Region, room.headroom, foreign)
	case f.Conns > room.headroom:
		response.Message = fmt.Sprintf("%d clients go to other regions, which have room for %d and take %.0f a second", f.Conns-room.headroom, foreign, away.rate())
	case response.PerSecond <= 0:
		response.Message = "the other edges take nobody now"
	case deadline > 0 && planned > deadline:
		response.Message = fmt.Sprintf("it takes %v at least, the deadline is %v: the rest will be closed in its last tenth",
			planned.Round(100*time.Millisecond), deadline)
	}
	return response
}

// UndrainNode makes an edge serve again that was told to leave through the API.
func (s *Service) UndrainNode(ctx context.Context, request *routerv1.UndrainNodeRequest) (*routerv1.UndrainNodeResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	m, err := s.cluster.edge(request.Node)
	if err != nil {
		return nil, err
	}
	op := s.cluster.drain(m)
	if op == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "node: %s: no drain is running there", m.Id)
	}
	if err := s.abort(ctx, op.Id); err != nil {
		return nil, err
	}
	return &routerv1.UndrainNodeResponse{Operation: op.Id}, nil
}
