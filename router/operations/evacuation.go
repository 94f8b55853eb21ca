package operations

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	defaultWindow = time.Minute
	maxHooks      = 8
	maxHookBytes  = 2_048
)

// Evacuate empties a region into the others, or takes it into service again.
func (s *Service) Evacuate(ctx context.Context, request *routerv1.EvacuateRequest) (*routerv1.EvacuateResponse, error) {
	if s.control == nil {
		return nil, errNoControl
	}
	if request.Back {
		return s.back(ctx, request.Region)
	}
	window := cmp.Or(time.Duration(request.WindowMs)*time.Millisecond, defaultWindow)
	if window > maxDeadline {
		return nil, invalid("window_ms", fmt.Sprintf("%d: at most %d", request.WindowMs, maxDeadline.Milliseconds()))
	}
	for _, hook := range request.HookUrls {
		if err := checkHook(hook); err != nil || len(request.HookUrls) > maxHooks {
			return nil, invalid("hook_urls", fmt.Sprintf("at most %d http:// or https:// URLs without user or password", maxHooks))
		}
	}
	check, err := s.checkEvacuation(request.Region, window)
	if err != nil || request.DryRun {
		return check, err
	}
	if !check.Fits && !request.Force {
		return nil, refusal(check)
	}
	if op := s.cluster.evacuation(request.Region); op != nil {
		return nil, controlError(&control.ConflictError{With: op})
	}
	return check, s.evacuate(ctx, request, check, window)
}

func checkHook(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxHookBytes || u.Host == "":
		return fmt.Errorf("not a URL")
	case u.User != nil || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("scheme or user")
	}
	return nil
}

// evacuate calls the first hooks, then begins: edges act as soon as they see the
// record.
func (s *Service) evacuate(ctx context.Context, request *routerv1.EvacuateRequest, check *routerv1.EvacuateResponse, window time.Duration) error {
	now := s.cfg.Now()
	op := &gatewayv1.Operation{
		Id: control.NewOperationID(now), Kind: gatewayv1.OperationKind_OPERATION_KIND_EVACUATE, Region: request.Region,
		DeadlineMs: uint32(window.Milliseconds()), Cause: causeAPI, HookUrls: request.HookUrls, Forced: !check.Fits, Message: check.Message,
		State: gatewayv1.OperationState_OPERATION_STATE_RUNNING,
	}
	if len(op.HookUrls) > 0 {
		bounded, cancel := context.WithTimeout(ctx, s.cfg.HooksBefore)
		op.Hooks = s.hooks.call(bounded, op, stepBefore, nil)
		cancel()
		for _, h := range op.Hooks {
			if h.Outcome != hookOK && !request.Force {
				return status.Errorf(codes.FailedPrecondition, "hook_urls: %d: %s; nothing was begun", h.Url, h.Outcome)
			}
		}
	}
	op.StartedMs = uint64(s.cfg.Now().UnixMilli())
	if err := s.control.PutOperation(ctx, op); err != nil {
		return controlError(err)
	}
	s.log.Info("evacuation began", "operation", op.Id, "region", op.Region, "forced", op.Forced)
	check.Operation = op.Id
	return nil
}

// back ends a live evacuation of a region.
func (s *Service) back(ctx context.Context, region string) (*routerv1.EvacuateResponse, error) {
	op := s.cluster.evacuation(region)
	if op == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "region: %q is not evacuated", region)
	}
	if err := s.abort(ctx, op.Id); err != nil {
		return nil, err
	}
	return &routerv1.EvacuateResponse{Operation: op.Id}, nil
}

// checkEvacuation compares what a region holds with what the others can take.
func (s *Service) checkEvacuation(region string, window time.Duration) (*routerv1.EvacuateResponse, error) {
	from, unheard := s.cluster.region(region)
	if from.edges == 0 {
		return nil, status.Errorf(codes.NotFound, "region: %q has no edges", region)
	}
	to := s.cluster.receivers(func(m *presence.Member) bool { return m.Region != region && !s.cluster.evacuated(m.Region) })
	check := precheck(from, to, window, s.cfg.CriticalReserve, s.cfg.ForeignPercent)
	if unheard > 0 && check.Fits {
		check.Fits, check.Message = false, fmt.Sprintf("nothing has been heard yet of %d of its %d edges", unheard, from.edges)
	}
	return check, nil
}

// precheck is the arithmetic of an evacuation. Of each receiver's room a part is for
// its own region, and a part of the rest for critical clients.
func precheck(from, to room, window time.Duration, reserve, foreignPercent int) *routerv1.EvacuateResponse {
	headroom := to.headroom * uint64(foreignPercent) / 100
	c := &routerv1.EvacuateResponse{
		Conns: from.conns, Critical: min(from.critical, from.conns), Headroom: headroom,
		Reserved: min(uint64(reserve*to.edges), headroom), NeededPerSecond: float64(from.conns) / window.Seconds(), PerSecond: to.rate(),
	}
	switch {
	case c.Conns == 0:
	case to.edges == 0:
		c.Message = "no edge of another region serves"
	case c.Conns > c.Headroom:
		c.Message = fmt.Sprintf("%d clients do not fit: the other regions have room for %d", c.Conns, c.Headroom)
	case c.Conns-c.Critical > c.Headroom-c.Reserved:
		c.Message = fmt.Sprintf("%d clients that are not critical do not fit: the other regions have room for %d of them, and for %d critical ones",
			c.Conns-c.Critical, c.Headroom-c.Reserved, c.Reserved)
	case c.NeededPerSecond > c.PerSecond:
		c.Message = fmt.Sprintf("%.0f clients a second would have to move, the other regions take %.0f: a window of %v is needed",
			c.NeededPerSecond, c.PerSecond, takes(c.Conns, c.PerSecond).Round(time.Second))
	}
	c.Fits = c.Message == ""
	return c
}

// refusal carries the numbers in its text and as a detail.
func refusal(c *routerv1.EvacuateResponse) error {
	s := status.New(codes.FailedPrecondition, c.Message)
	if with, err := s.WithDetails(c); err == nil {
		s = with
	}
	return s.Err()
}
