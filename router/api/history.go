package api

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// forwardedHeader marks a read that another router passed on: it is answered
// where it arrives.
const forwardedHeader = "spillway-forwarded"

type historyService struct {
	routerv1.UnimplementedHistoryServiceServer
	*Server
}

// ReadHistory returns events of one channel.
func (s historyService) ReadHistory(ctx context.Context, request *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	ns, limit, err := s.admitHistory(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadDeadline)
	defer cancel()
	page := s.page(ctx, request, ns, limit)
	switch {
	case page.Elsewhere:
		return s.forwardHistory(ctx, request)
	case page.Result.Code != codes.OK:
		return nil, statusOf(page.Result)
	}
	return historyResponse(request, page)
}

func (s historyService) admitHistory(request *routerv1.ReadHistoryRequest) (*namespace.Namespace, int, error) {
	if err := wire.CheckChannel(request.Channel); err != nil {
		return nil, 0, statusOf(invalid(err.Error()))
	}
	ns := s.namespaces.Of(request.Channel)
	if ns == nil {
		return nil, 0, statusOf(unknownNamespace(request.Channel))
	}
	switch {
	case request.Limit > channel.MaxPage:
		return nil, 0, statusOf(invalid("limit: at most 1000"))
	case request.Limit == 0:
		return ns, 100, nil
	}
	return ns, int(request.Limit), nil
}

// page asks for the page and waits for it until ctx ends, which has a deadline.
func (s historyService) page(ctx context.Context, request *routerv1.ReadHistoryRequest, ns *namespace.Namespace, limit int) channel.PageResult {
	got := make(chan channel.PageResult, 1)
	deadline, _ := ctx.Deadline()
	s.channels.Page(&channel.PageQuery{
		Channel: request.Channel, Namespace: ns, Offset: request.Offset, Limit: limit, Reverse: request.Reverse,
		Deadline: deadline, Gone: func() bool { return ctx.Err() != nil }, Reply: func(page channel.PageResult) { got <- page },
	})
	select {
	case page := <-got:
		return page
	case <-ctx.Done():
		return channel.PageResult{Result: channel.Result{Code: codes.Unavailable, Message: "history cannot be read now", RetryAfter: time.Second}}
	}
}

// forwardHistory asks the owner of a channel that only its owner's memory has.
func (s historyService) forwardHistory(ctx context.Context, request *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(forwardedHeader)) > 0 {
		return nil, statusOf(channel.Result{Code: codes.Unavailable, Message: "the channel is moving to another router", RetryAfter: channel.MovingRetry})
	}
	view, _ := s.views.View()
	owner := view.Owner(request.Channel)
	if owner == nil || owner.Id == s.cfg.ID {
		return nil, statusOf(channel.Result{Code: codes.Unavailable, Message: "no router owns the channel", RetryAfter: time.Second})
	}
	conn, err := s.peers.Conn(owner)
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the channel's router cannot be reached")
	}
	return routerv1.NewHistoryServiceClient(conn).ReadHistory(metadata.AppendToOutgoingContext(ctx, forwardedHeader, "1"), request)
}

func historyResponse(request *routerv1.ReadHistoryRequest, page channel.PageResult) (*routerv1.ReadHistoryResponse, error) {
	epoch := wire.FormatEpoch(page.Epoch)
	if request.Epoch != "" && request.Epoch != epoch {
		return nil, status.Errorf(codes.FailedPrecondition, "epoch: the channel is in another run, %s", epoch)
	}
	response := &routerv1.ReadHistoryResponse{
		Channel: request.Channel, Epoch: epoch, Head: page.Head, First: page.First, More: page.More,
		Events: make([]*routerv1.HistoryEvent, len(page.Events)),
	}
	for i, e := range page.Events {
		response.Events[i] = historyEvent(e)
	}
	return response, nil
}

func historyEvent(e *gatewayv1.BusEvent) *routerv1.HistoryEvent {
	h := &routerv1.HistoryEvent{Offset: e.Offset, TimeMs: e.TimeMs, From: e.From}
	if e.Binary {
		h.Data = &routerv1.HistoryEvent_Binary{Binary: e.Data}
	} else {
		h.Data = &routerv1.HistoryEvent_Json{Json: string(e.Data)}
	}
	if len(e.Meta) > 0 {
		_ = json.Unmarshal(e.Meta, &h.Meta) // made by wire.MetaJSON
	}
	return h
}
