package router

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// maxDeadline bounds what an operator may ask for.
const maxDeadline = time.Hour

// room is what edges can take, by their newest figures.
type room struct {
	edges     int
	conns     uint64
	critical  uint64
	headroom  uint64
	smallest  float64 // rate of the slowest
	perSecond float64
	blind     bool // some have no address of their own: a balancer spreads over all alike
}

func (r *room) add(m *presence.Member, f *presence.Figure) {
	if r.edges == 0 || f.MovedPerSecond < r.smallest {
		r.smallest = f.MovedPerSecond
	}
	r.edges++
	r.conns += f.Conns
	r.critical += f.Critical
	r.headroom += f.Headroom
	r.perSecond += f.MovedPerSecond
	r.blind = r.blind || m.Address == ""
}

// rate is at what pace they take clients that move.
func (r *room) rate() float64 {
	if r.blind {
		return r.smallest * float64(r.edges)
	}
	return r.perSecond
}

// receivers sums over the edges that may be given clients.
func (r *Router) receivers(want func(*presence.Member) bool) room {
	var sum room
	figures := r.members.Figures()
	for _, m := range r.members.Snapshot().Edges() {
		key := presence.KeyOf(m)
		f := figures[key]
		if f == nil || f.Incarnation != m.Incarnation || f.State != gatewayv1.State_STATE_SERVING || r.members.Silent(key) || !want(m) {
			continue
		}
		sum.add(m, f)
	}
	return sum
}

// takes is the time that so many clients need at a rate; 0: for ever.
func takes(conns uint64, perSecond float64) time.Duration {
	if perSecond <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(float64(conns)/perSecond*1000)) * time.Millisecond
}

// edge finds one, or says why there is none.
func (r *Router) edge(id string) (*presence.Member, error) {
	snapshot := r.members.Snapshot()
	if m := snapshot.Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: id}); m != nil {
		return m, nil
	}
	if snapshot.Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id}) != nil {
		return nil, status.Errorf(codes.InvalidArgument, "node: %q is a router: end its process, nobody is disconnected", id)
	}
	return nil, status.Errorf(codes.NotFound, "node: %q is not a member of the cluster", id)
}

// DrainNode starts the leaving of an edge.
func (s adminService) DrainNode(ctx context.Context, request *routerv1.DrainNodeRequest) (*routerv1.DrainNodeResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	if time.Duration(request.DeadlineMs)*time.Millisecond > maxDeadline {
		return nil, statusOf(invalid(fmt.Sprintf("deadline_ms: %d: at most %d", request.DeadlineMs, maxDeadline.Milliseconds())))
	}
	m, err := s.edge(request.Node)
	if err != nil {
		return nil, err
	}
	if op := s.running(gatewayv1.OperationKind_OPERATION_KIND_DRAIN, m.Id, m.Incarnation); op != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "node: %s is leaving already: operation %s", m.Id, op.Id)
	}
	if m.State == gatewayv1.State_STATE_DRAINING && !s.evacuated(m.Region) {
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
func (r *Router) planDrain(m *presence.Member, deadline time.Duration) *routerv1.DrainNodeResponse {
	room := r.receivers(func(other *presence.Member) bool { return other.Region == m.Region && other.Id != m.Id })
	response := &routerv1.DrainNodeResponse{Headroom: room.headroom, PerSecond: room.rate()}
	f := r.members.Figures()[presence.KeyOf(m)]
	if f == nil || f.Incarnation != m.Incarnation {
		response.Message = "nothing has been heard of this edge yet"
		return response
	}
	response.Conns = f.Conns
	planned := takes(f.Conns, response.PerSecond)
	response.PlannedMs = uint32(min(planned.Milliseconds(), math.MaxUint32))
	// Who has no room in the region goes to others.
	away := r.receivers(func(other *presence.Member) bool { return other.Region != m.Region && !r.evacuated(other.Region) })
	foreign := away.headroom * uint64(r.cfg.ForeignPercent) / 100
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

// running is the live operation of a kind at a node, or nil.
func (r *Router) running(kind gatewayv1.OperationKind, node string, incarnation uint64) *gatewayv1.Operation {
	for _, op := range r.control.Operations() {
		if op.Kind == kind && op.Node == node && !control.Ended(op) && (op.Incarnation == 0 || op.Incarnation == incarnation) {
			return op
		}
	}
	return nil
}

// UndrainNode makes an edge serve again that was told to leave through the API.
func (s adminService) UndrainNode(ctx context.Context, request *routerv1.UndrainNodeRequest) (*routerv1.UndrainNodeResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	m, err := s.edge(request.Node)
	if err != nil {
		return nil, err
	}
	op := s.running(gatewayv1.OperationKind_OPERATION_KIND_DRAIN, m.Id, m.Incarnation)
	if op == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "node: %s: no drain is running there", m.Id)
	}
	if err := s.abort(ctx, op.Id); err != nil {
		return nil, err
	}
	return &routerv1.UndrainNodeResponse{Operation: op.Id}, nil
}
