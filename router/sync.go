package router

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// maxSyncBytes bounds one message of answers; one answer may pass it alone.
const maxSyncBytes = 1 << 20

// edgeStream is the Sync stream of one edge: one goroutine reads asks, one
// writes answers. An edge that reads slowly hurts itself alone: its asks are not
// read while too many are unanswered or too many answers wait, and what the
// store brings meanwhile is answered UNAVAILABLE (counted).
type edgeStream struct {
	// immutable
	router *Router
	ctx    context.Context
	wake   chan struct{} // capacity 1: answers wait
	room   chan struct{} // capacity 1: there is room again

	mu      sync.Mutex // guards below
	answers []*gatewayv1.Answer
	bytes   int
	open    int // asks unanswered or whose answer was not sent
}

type edgeService struct {
	gatewayv1.UnimplementedEdgeServiceServer
	*Router
}

// Sync serves one edge until either side ends it.
func (s edgeService) Sync(stream grpc.BidiStreamingServer[gatewayv1.SyncRequest, gatewayv1.SyncResponse]) error {
	if s.stopping() {
		return errStopping
	}
	s.metrics.streams.Inc()
	s.edges.Add(1)
	defer s.metrics.streams.Dec()
	defer s.edges.Add(-1)
	e := &edgeStream{router: s.Router, ctx: stream.Context(), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	// It reads asks and ends when the stream does, soon after this returns; the
	// router waits for it when it stops.
	s.streams.Go(func() { ended <- e.read(stream) })
	for {
		select {
		case <-e.wake:
			if err := e.send(stream); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-s.stop:
			return errStopping
		}
	}
}

func (e *edgeStream) read(stream grpc.BidiStreamingServer[gatewayv1.SyncRequest, gatewayv1.SyncResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil // the edge ended it, or the connection did
		}
		for _, ask := range request.Asks {
			if !e.admit() {
				return nil
			}
			e.router.ask(ask, e.gone, e.reply)
		}
	}
}

func (e *edgeStream) gone() bool { return e.ctx.Err() != nil }

// admit waits until the edge may ask once more; false: the stream has ended.
func (e *edgeStream) admit() bool {
	for {
		e.mu.Lock()
		if e.open < e.router.cfg.StreamAsks && e.bytes < e.router.cfg.StreamBytes {
			e.open++
			e.mu.Unlock()
			return true
		}
		e.mu.Unlock()
		select {
		case <-e.room:
		case <-e.ctx.Done():
			return false
		}
	}
}

// reply queues an answer. It never blocks.
func (e *edgeStream) reply(a *gatewayv1.Answer) {
	size := proto.Size(a)
	e.mu.Lock()
	if e.bytes+size > e.router.cfg.StreamBytes+maxSyncBytes && len(a.Events) > 0 {
		a = &gatewayv1.Answer{
			Id: a.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, HasHistory: a.HasHistory,
			RetryAfterMs: uint32(e.router.cfg.RetrySpread.Milliseconds()), Message: "the edge reads its answers too slowly",
		}
		size = proto.Size(a)
		e.router.metrics.answersShed.Inc()
	}
	e.answers = append(e.answers, a)
	e.bytes += size
	e.mu.Unlock()
	signal(e.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// send writes all that waits, in messages of about maxSyncBytes.
func (e *edgeStream) send(stream grpc.BidiStreamingServer[gatewayv1.SyncRequest, gatewayv1.SyncResponse]) error {
	for {
		answers, size := e.take()
		if len(answers) == 0 {
			return nil
		}
		lag := uint32(e.router.reads.lag().Milliseconds())
		if err := stream.Send(&gatewayv1.SyncResponse{Answers: answers, BackfillLagMs: lag}); err != nil {
			return err
		}
		e.mu.Lock()
		e.bytes -= size
		e.open -= len(answers)
		e.mu.Unlock()
		signal(e.room)
	}
}

func (e *edgeStream) take() ([]*gatewayv1.Answer, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, size := 0, 0
	for n < len(e.answers) && (n == 0 || size < maxSyncBytes) {
		next := proto.Size(e.answers[n])
		if n > 0 && size+next > maxSyncBytes {
			break
		}
		size += next
		n++
	}
	answers := e.answers[:n:n]
	if e.answers = e.answers[n:]; len(e.answers) == 0 {
		e.answers = nil
	}
	return answers, size
}

var errStopping = status.Error(codes.Unavailable, "the router is leaving")
