package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// maxSyncBytes bounds one message of answers; one answer may pass it alone.
const maxSyncBytes = 1 << 20

// edgeStream is the Sync stream of one edge: one goroutine reads asks, one
// writes answers. An edge that reads slowly hurts itself alone: its asks are not
// read while too many are unanswered or too many answers wait, and what the
// store brings meanwhile is answered UNAVAILABLE (counted).
type edgeStream struct {
	// immutable
	server *Server
	ctx    context.Context
	wake   chan struct{} // capacity 1: answers wait
	room   chan struct{} // capacity 1: there is room again

	mu      sync.Mutex // guards below
	answers []*gatewayv1.Answer
	bytes   int
	open    int // asks unanswered or whose answer was not sent
	unseen  int // of them, those that nobody has looked at yet: each may be answered at once
}

type edgeService struct {
	gatewayv1.UnimplementedEdgeServiceServer
	*Server
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
	e := &edgeStream{server: s.Server, ctx: stream.Context(), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
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
			e.server.ask(ask, e.gone, e.looked, e.reply)
		}
	}
}

func (e *edgeStream) gone() bool { return e.ctx.Err() != nil }

// admit waits until the edge may ask once more; false: the stream has ended.
func (e *edgeStream) admit() bool {
	for {
		e.mu.Lock()
		if e.open < e.server.cfg.StreamAsks && e.bytes+e.unseen*e.server.cfg.AnswerBytes < e.server.cfg.StreamBytes {
			e.open++
			e.unseen++
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

// looked notes that an ask was looked at: it was answered, or has to be waited for.
func (e *edgeStream) looked() {
	e.mu.Lock()
	e.unseen--
	few := 2*e.unseen*e.server.cfg.AnswerBytes <= e.server.cfg.StreamBytes // not one by one: waking costs more than looking
	e.mu.Unlock()
	if few {
		signal(e.room)
	}
}

// reply queues an answer. It never blocks.
func (e *edgeStream) reply(a *gatewayv1.Answer) {
	size := proto.Size(a)
	e.mu.Lock()
	if e.bytes+size > e.server.cfg.StreamBytes+maxSyncBytes && len(a.Events) > 0 {
		a = &gatewayv1.Answer{
			Id: a.Id, Status: gatewayv1.Status_STATUS_UNAVAILABLE, HasHistory: a.HasHistory,
			RetryAfterMs: uint32(e.server.cfg.RetrySpread.Milliseconds()), Message: "the edge reads its answers too slowly",
		}
		size = proto.Size(a)
		e.server.metrics.answersShed.Inc()
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
		lag := uint32(e.server.channels.Lag().Milliseconds())
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

// ask admits one question of an edge. looked and reply are called once, now or later, and
// must not block: looked when the question was answered or has to be waited for.
func (s *Server) ask(a *gatewayv1.Ask, gone func() bool, looked func(), reply func(*gatewayv1.Answer)) {
	ns, status, message := s.admitAsk(a)
	if ns == nil {
		s.metrics.asksRefused.Inc()
		looked()
		reply(&gatewayv1.Answer{Id: a.Id, Status: status, Message: message})
		return
	}
	most := s.cfg.AnswerBytes
	if a.MaxBytes > 0 {
		most = min(most, int(a.MaxBytes))
	}
	wait := s.cfg.ReadDeadline
	if a.DeadlineMs > 0 {
		wait = min(wait, time.Duration(a.DeadlineMs)*time.Millisecond)
	}
	s.channels.Ask(&channel.Question{
		Ask: a, Namespace: ns, MaxBytes: most, Deadline: time.Now().Add(wait), Gone: gone, Looked: looked, Reply: reply,
	})
}

func (s *Server) admitAsk(a *gatewayv1.Ask) (*namespace.Namespace, gatewayv1.Status, string) {
	if err := wire.CheckChannel(a.Channel); err != nil {
		return nil, gatewayv1.Status_STATUS_INVALID, err.Error()
	}
	ns := s.namespaces.Of(a.Channel)
	if ns == nil {
		return nil, gatewayv1.Status_STATUS_NOT_FOUND, "unknown namespace"
	}
	if a.OpenOnly && ns.Subscribe != namespace.Everyone {
		return nil, gatewayv1.Status_STATUS_FORBIDDEN, "the namespace needs a grant"
	}
	return ns, gatewayv1.Status_STATUS_OK, ""
}

// Submit publishes for users and for other routers.
func (s edgeService) Submit(ctx context.Context, request *gatewayv1.SubmitRequest) (*gatewayv1.SubmitResponse, error) {
	if len(request.Submissions) > maxBatch {
		return nil, statusOf(invalid("submissions: at most 1000 are allowed"))
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishDeadline)
	defer cancel()
	c := channel.NewCall(len(request.Submissions))
	pubs := make([]*channel.Publication, len(request.Submissions))
	for i, sub := range request.Submissions {
		p := &channel.Publication{Channel: sub.Channel, Call: c, OpenOnly: sub.OpenOnly, ByClient: sub.ByClient, Forwarded: request.Forwarded, Hops: request.Hops}
		p.Event.Data, p.Event.Binary, p.Event.Meta = sub.Data, sub.Binary, sub.Meta
		p.Event.Key, p.Event.From = sub.Key, sub.From
		s.admit(p)
		pubs[i] = p
	}
	s.publish(ctx, pubs, nil)
	response := &gatewayv1.SubmitResponse{Results: make([]*gatewayv1.SubmitResult, len(pubs))}
	for i, res := range c.Wait(ctx, pubs) {
		response.Results[i] = &gatewayv1.SubmitResult{
			Code: uint32(res.Code), Message: res.Message, RetryAfterMs: uint32(res.RetryAfter.Milliseconds()),
			Epoch: res.Epoch, Offset: res.Offset, Repeat: res.Repeat, Durability: uint32(said(res)),
		}
	}
	return response, nil
}
