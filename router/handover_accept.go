package router

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// gifted is what one router has handed to this one.
type gifted struct {
	mu      sync.Mutex // guards all; taken before a shard's
	stream  *byte      // the newest: what comes by older ones is late
	life    uint64     // of the giver's sequence of pieces
	seq     uint64     // of the last piece
	partial *received  // goes on in the next piece; nil: nothing does
}

var errStopping = status.Error(codes.Unavailable, "the router is leaving")

var errLateHand = status.Error(codes.Aborted, "another stream of this router was begun since")

// Hand takes channels from another router until it has no more.
func (s handoverService) Hand(stream grpc.BidiStreamingServer[gatewayv1.HandRequest, gatewayv1.HandResponse]) error {
	if s.stopping() {
		return errStopping
	}
	answers, name := make(chan *gatewayv1.HandResponse), new(byte)
	// It takes pieces and ends with the stream, soon after this returns; the router
	// waits for it when it stops.
	s.streams.Go(func() {
		defer close(answers)
		for {
			request, err := stream.Recv()
			if err != nil {
				return // the giver ended it, or the connection did
			}
			select {
			case answers <- s.hand.accept(request, name):
			case <-stream.Context().Done():
				return
			}
		}
	})
	for {
		select {
		case answer, more := <-answers:
			if !more {
				return nil
			} else if answer == nil {
				return errLateHand
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		case <-s.stop:
			return errStopping
		}
	}
}

// accept takes one piece; nil: the giver has begun another stream since.
func (h *handover) accept(request *gatewayv1.HandRequest, stream *byte) *gatewayv1.HandResponse {
	answer := &gatewayv1.HandResponse{Seq: request.Seq, Life: h.life}
	g := h.giftedBy(request.Router)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case request.Seq == 0:
		if g.stream = stream; request.Life != g.life {
			g.life, g.seq, g.partial = request.Life, 0, nil
		}
		return answer
	case g.stream != stream || request.Life != g.life:
		return nil
	case request.Seq <= g.seq:
		return answer // it came before, and the answer was lost
	}
	if h.closed.Load() {
		answer.Refused = true
		g.partial = nil
		return answer
	}
	g.seq = request.Seq
	for _, c := range request.Channels {
		r := g.join(c, request.Revision, h.cfg.CacheBytes/4)
		if r != nil {
			h.receive(r)
		}
	}
	h.table.shrink()
	return answer
}

func (h *handover) giftedBy(router string) *gifted {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.taken[router]
	if g == nil {
		for id := range h.taken {
			if h.member(id) == nil {
				delete(h.taken, id)
			}
		}
		g = &gifted{}
		h.taken[router] = g
	}
	return g
}

// join puts the parts of a channel together; nil: more will come. Past the limit the
// oldest events go.
func (g *gifted) join(c *gatewayv1.HandedChannel, revision uint64, limit int64) *received {
	r := g.partial
	if r == nil || r.meta.Channel != c.Channel {
		r = &received{meta: c, revision: revision}
	}
	r.meta.Keys, r.revision = c.Keys, max(r.revision, revision)
	for _, e := range c.Events {
		r.bytes += eventSize(e)
	}
	r.events = append(r.events, c.Events...)
	for len(r.events) > 0 && r.bytes > limit {
		r.bytes -= eventSize(r.events[0])
		r.events = r.events[1:]
	}
	if c.More {
		g.partial = r
		return nil
	}
	g.partial = nil
	return r
}

// receive puts one channel into the table.
func (h *handover) receive(r *received) {
	name := r.meta.Channel
	ns := h.router.namespaces.Of(name)
	if ns == nil || wire.CheckChannel(name) != nil {
		h.count.refused.Inc()
		return
	}
	shard := h.table.lock(name)
	ch := h.table.getLocked(shard, name, ns)
	began := ch.tenure.until.Add(-h.cfg.HandoverWait)
	awaited := ch.tenure.state == tenureAwaiting
	took := h.takeLocked(ch, r)
	v := h.own.look(name, ch.known, &ch.tenure, time.Now())
	if to := ch.tenure.due(&v); to != "" {
		h.listLocked(ch, to, v.revision, false) // a view newer than the giver's
	}
	shard.mu.Unlock()
	switch {
	case !took:
		h.count.refused.Inc()
	case awaited:
		h.count.handed.Inc()
		h.count.waitSeconds.Observe(time.Since(began).Seconds())
		fallthrough
	default:
		h.count.taken.Inc()
	}
	h.release(ch, false)
}
