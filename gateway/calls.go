package gateway

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/gateway/auth"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Upstream is what an edge asks of routers besides positions.
type Upstream interface {
	Submit(context.Context, *gatewayv1.Submission) (*gatewayv1.SubmitResult, error)
	ReadHistory(context.Context, *routerv1.ReadHistoryRequest) (*routerv1.ReadHistoryResponse, error)
}

// maxConnCalls bounds the publishes and reads of one conn that wait for routers.
const maxConnCalls = 64

// calls are the router calls of one conn: one under way, the others in order, so
// that a client's events keep their order.
type calls struct {
	waiting []call
	busy    bool
}

type call struct {
	id  uint32
	run func(context.Context) *clientv1.ServerFrame
}

// call runs f off the loop, after the calls before it, and sends what it returns.
func (c commands) call(id uint32, f func(context.Context) *clientv1.ServerFrame) {
	if c.calls == nil {
		c.calls = new(calls)
	}
	if len(c.calls.waiting) >= maxConnCalls {
		c.failLater(id, clientv1.ErrorCode_ERROR_CODE_RATE_LIMITED, "too many commands are waiting on this connection", jitterMS(time.Second, 2*time.Second))
		return
	}
	c.calls.waiting = append(c.calls.waiting, call{id, f})
	c.nextCall()
}

func (c commands) nextCall() {
	if c.calls == nil || c.calls.busy || len(c.calls.waiting) == 0 || c.out.Bytes() > c.loop.edge.cfg.SendQueueBytes {
		return
	}
	e := c.loop.edge
	job := c.calls.waiting[0]
	reply := &callReply{conn: c.token, id: job.id}
	run := func() { // ends within CallTimeout; Edge.Run waits for it
		ctx, cancel := context.WithTimeout(e.working, e.cfg.CallTimeout)
		defer cancel()
		reply.frame = job.run(ctx)
		reply.frame.Id = reply.id
		c.loop.inbox.Post(reply)
	}
	if !e.callers.start(run) {
		c.calls.waiting = c.calls.waiting[1:]
		frame := unavailableFrame("too many commands are waiting on this edge")
		frame.Id = reply.id
		c.send(frame)
		return
	}
	c.calls.waiting[0] = call{}
	c.calls.waiting = c.calls.waiting[1:]
	c.calls.busy = true
}

type callReply struct {
	conn  uint64
	id    uint32
	frame *clientv1.ServerFrame
}

func (m *callReply) apply(l *loop) {
	c := l.find(m.conn)
	if c == nil || c.closed {
		return
	}
	c.calls.busy = false
	c.send(m.frame)
	commands{c}.nextCall()
}

func unavailableFrame(text string) *clientv1.ServerFrame {
	after := 500 + rand.Uint32N(1000)
	return &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Error{Error: &clientv1.Error{
		Code: clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, Message: text, Temporary: true, RetryAfterMs: &after,
	}}}
}

// publish sends a client's event to the owner of its channel.
func (c commands) publish(id uint32, m *clientv1.Publish) {
	claims := c.session.claims
	sub := &gatewayv1.Submission{
		Channel: m.Channel, Data: m.Data, Binary: m.Binary, Meta: wire.MetaJSON(m.Meta), Key: m.Key,
		From: claims.Subject, ByClient: true, OpenOnly: !claims.Allows(m.Channel, auth.Publish),
	}
	up, lacking := c.loop.edge.upstream, c.lacking()
	c.call(id, func(ctx context.Context) *clientv1.ServerFrame {
		result, err := up.Submit(ctx, sub)
		if err != nil {
			return errorFrame(err)
		}
		switch {
		case codes.Code(result.Code) == codes.PermissionDenied && sub.OpenOnly:
			return &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Error{Error: &clientv1.Error{Code: lacking, Message: result.Message}}}
		case result.Code != 0:
			return codeFrame(codes.Code(result.Code), result.Message, result.RetryAfterMs)
		}
		return &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Published{Published: &clientv1.Published{
			Channel: sub.Channel, Epoch: wire.FormatEpoch(result.Epoch), Offset: result.Offset,
		}}}
	})
}

// maxHistoryLimit bounds one history reply together with the router's bytes.
const maxHistoryLimit = 1000

// history reads what was published.
func (c commands) history(id uint32, m *clientv1.History) {
	if !c.session.claims.Allows(m.Channel, auth.History) {
		c.fail(id, c.lacking(), "the token gives no right to this channel's history")
		return
	}
	if m.Limit == 0 || m.Limit > maxHistoryLimit {
		c.fail(id, badRequest, "limit: must be between 1 and 1000")
		return
	}
	up := c.loop.edge.upstream
	c.call(id, func(ctx context.Context) *clientv1.ServerFrame {
		page, err := up.ReadHistory(ctx, &routerv1.ReadHistoryRequest{
			Channel: m.Channel, Epoch: m.Epoch, Offset: m.Offset, Limit: m.Limit, Reverse: m.Reverse,
		})
		if err != nil {
			return errorFrame(err)
		}
		return &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_History{History: historyResult(page)}}
	})
}

// historyResult fits a page into one frame of at most 1 MiB; more says if it was
// cut.
func historyResult(page *routerv1.ReadHistoryResponse) *clientv1.HistoryResult {
	out := &clientv1.HistoryResult{Channel: page.Channel, Epoch: page.Epoch, More: page.More}
	room := wire.MaxFrameBytes - 8<<10
	for _, e := range page.Events {
		ev := &clientv1.Event{Offset: e.Offset, TimeMs: e.TimeMs, From: e.From, Meta: e.Meta}
		if binary, ok := e.Data.(*routerv1.HistoryEvent_Binary); ok {
			ev.Data, ev.Binary = binary.Binary, true
			room -= len(ev.Data) / 3
		} else {
			ev.Data = []byte(e.GetJson())
		}
		if room -= len(ev.Data) + len(wire.MetaJSON(e.Meta)) + len(e.From) + 128; room < 0 && len(out.Events) > 0 {
			out.More = true
			break
		}
		out.Events = append(out.Events, ev)
	}
	return out
}

// errorFrame tells a client what a gRPC status means for it.
func errorFrame(err error) *clientv1.ServerFrame {
	st := status.Convert(err)
	return codeFrame(st.Code(), st.Message(), 0)
}

func codeFrame(code codes.Code, message string, retryMS uint32) *clientv1.ServerFrame {
	e := &clientv1.Error{Message: message}
	switch code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		e.Code = badRequest
	case codes.PermissionDenied:
		e.Code = clientv1.ErrorCode_ERROR_CODE_FORBIDDEN
	case codes.NotFound:
		e.Code = clientv1.ErrorCode_ERROR_CODE_NOT_FOUND
	case codes.ResourceExhausted:
		e.Code = clientv1.ErrorCode_ERROR_CODE_RATE_LIMITED
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unauthenticated:
		return unavailableFrame("no router answered: " + message)
	default:
		e.Code = clientv1.ErrorCode_ERROR_CODE_INTERNAL
	}
	if retryMS > 0 {
		e.Temporary, e.RetryAfterMs = true, &retryMS
	}
	return &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Error{Error: e}}
}
