package handover

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// maxTake is the most channels of one Take.
const maxTake = 1000

var (
	errLate     = status.Error(codes.Aborted, "another stream of this router was begun since")
	errStopping = status.Error(codes.Unavailable, "the router is leaving")
)

// receiver is what one router hands to this one.
type receiver struct {
	turn    chan struct{} // capacity 1: who has put something in owns the rest
	stream  *byte         // the newest: what comes by older ones is late
	life    uint64        // of the giver's sequence of messages
	seq     uint64        // of the last message
	partial join          // goes on in the next message
}

// Service is what other routers call.
type Service struct {
	gatewayv1.UnimplementedHandoverServiceServer
	*Handover
	Stop <-chan struct{} // closed when streams must end
}

// Hand takes channels from another router until it has no more.
func (s Service) Hand(stream grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error {
	type received struct {
		request *gatewayv1.HandRequest
		err     error
	}
	requests, name := make(chan received), new(byte)
	// It reads and ends with the stream, soon after this returns; End waits for it.
	s.running.Go(func() {
		for {
			request, err := stream.Recv()
			select {
			case requests <- received{request, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	for {
		select {
		case r := <-requests:
			if r.err != nil {
				return nil // the giver ended it, or the connection did
			}
			answer := s.accept(stream.Context(), r.request, name)
			if answer == nil {
				return errLate
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		case <-s.Stop:
			return errStopping
		}
	}
}

// accept takes one message; nil: the giver has begun another stream since.
func (h *Handover) accept(ctx context.Context, request *gatewayv1.HandRequest, stream *byte) *gatewayv1.HandResponse {
	answer := &gatewayv1.HandResponse{Seq: request.Seq, Life: h.life}
	r := h.receiverOf(request.Router)
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-r.turn }()
	switch {
	case request.Seq == 0:
		if r.stream = stream; request.Life != r.life {
			r.life, r.seq, r.partial = request.Life, 0, join{}
		}
		return answer
	case r.stream != stream || request.Life != r.life:
		return nil
	case request.Seq <= r.seq:
		return answer // it came before, and the answer was lost
	}
	if h.closed.Load() {
		answer.Refused = true
		r.partial = join{}
		return answer
	}
	r.seq = request.Seq
	for _, c := range request.Channels {
		handed := r.partial.add(c, request.Revision, h.cfg.MaxChannelBytes)
		if handed == nil {
			continue
		}
		if ns := h.Namespaces.Of(c.Channel); ns != nil && wire.CheckChannel(c.Channel) == nil {
			h.Channels.Accept(handed, ns)
		}
	}
	return answer
}

func (h *Handover) receiverOf(router string) *receiver {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.taken[router]
	if r == nil {
		for id := range h.taken {
			if h.Views.Router(id) == nil {
				delete(h.taken, id)
			}
		}
		r = &receiver{turn: make(chan struct{}, 1)}
		h.taken[router] = r
	}
	return r
}

// Take says what becomes of channels that another router wants, and has those that are
// here handed to it before all others.
func (s Service) Take(_ context.Context, request *gatewayv1.TakeRequest) (*gatewayv1.TakeResponse, error) {
	if len(request.Channels) > maxTake {
		return nil, status.Error(codes.InvalidArgument, "channels: at most 1000 are allowed")
	}
	for _, name := range request.Channels {
		if err := wire.CheckChannel(name); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	response := &gatewayv1.TakeResponse{Results: make([]*gatewayv1.TakeResult, len(request.Channels))}
	for i, taking := range s.Channels.Asked(request.Router, request.Revision, request.Channels) {
		response.Results[i] = &gatewayv1.TakeResult{Taking: taking}
	}
	return response, nil
}
