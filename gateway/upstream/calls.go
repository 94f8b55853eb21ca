package upstream

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// errNoRouter says that nothing was sent to anybody.
var errNoRouter = status.Error(codes.Unavailable, "no router serves")

// Submit publishes one event for a client. The result has its own code; the
// error, a gRPC status, says that the router could not be asked or that the
// outcome is unknown (UNAVAILABLE, DEADLINE_EXCEEDED). A second router is tried
// only if the first was never reached or the submission has a key.
func (u *Upstream) Submit(ctx context.Context, s *gatewayv1.Submission) (*gatewayv1.SubmitResult, error) {
	var result *gatewayv1.SubmitResult
	err := u.call(ctx, s.Channel, s.Key != "", func(ctx context.Context, conn *grpc.ClientConn, reached *peer.Peer) error {
		request := &gatewayv1.SubmitRequest{Submissions: []*gatewayv1.Submission{s}}
		r, err := gatewayv1.NewEdgeServiceClient(conn).Submit(ctx, request, grpc.Peer(reached))
		if err != nil {
			return err
		}
		if len(r.Results) != 1 {
			return status.Errorf(codes.Internal, "router gave %d results for one submission", len(r.Results))
		}
		result = r.Results[0]
		return nil
	})
	return result, err
}

// ReadHistory reads events of one channel. The error is the router's, or
// UNAVAILABLE, DEADLINE_EXCEEDED if none could be asked in time.
func (u *Upstream) ReadHistory(ctx context.Context, r *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error) {
	var page *routerv1.ReadHistoryResponse
	err := u.call(ctx, r.Channel, true, func(ctx context.Context, conn *grpc.ClientConn, reached *peer.Peer) (err error) {
		page, err = routerv1.NewHistoryServiceClient(conn).ReadHistory(ctx, r, grpc.Peer(reached))
		return err
	})
	return page, err
}

// call tries the owner of a channel, then, where that is safe, the next router.
func (u *Upstream) call(ctx context.Context, channel string, repeatable bool, try func(context.Context, *grpc.ClientConn, *peer.Peer) error) error {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.CallTimeout)
	defer cancel()
	first, second := u.choose(channel)
	if first == nil {
		return errNoRouter
	}
	wait := u.cfg.CallTimeout
	if second != nil && repeatable {
		wait /= 2 // time is left for the other
	}
	reached, err := u.attempt(ctx, first, wait, try)
	if err == nil || second == nil || ctx.Err() != nil || reached && !repeatable {
		return err
	}
	if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
		return err
	}
	u.metrics.callFallbacks.Inc()
	_, err = u.attempt(ctx, second, u.cfg.CallTimeout, try)
	return err
}

// choose gives the owner and the one after it, those known to be down last.
func (u *Upstream) choose(channel string) (first, second *presence.Member) {
	ranked := u.cfg.View.Snapshot().Ranked(channel)
	var reachable, others []*presence.Member
	for _, m := range ranked {
		if u.cfg.Peers.Down(m) {
			others = append(others, m)
		} else {
			reachable = append(reachable, m)
		}
	}
	order := append(reachable, others...)
	if len(order) > 0 {
		first = order[0]
	}
	if len(order) > 1 {
		second = order[1]
	}
	return first, second
}

// attempt makes one call; reached is false if it was certainly never sent.
func (u *Upstream) attempt(ctx context.Context, m *presence.Member, wait time.Duration, try func(context.Context, *grpc.ClientConn, *peer.Peer) error) (reached bool, err error) {
	conn, err := u.cfg.Peers.Conn(m)
	if err != nil {
		return false, status.Error(codes.Unavailable, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var p peer.Peer // set once the call has a transport
	err = try(ctx, conn, &p)
	return p.Addr != nil, err
}
