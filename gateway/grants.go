package gateway

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Peers is request-reply between edges (presence/nats.Messenger). Request waits for the
// answer until ctx ends; its error is presence.ErrBusAway if nothing could be sent. Serve
// calls answer for each question, one after the other, until ctx ends.
type Peers interface {
	Request(ctx context.Context, edge string, question []byte) ([]byte, error)
	Serve(ctx context.Context, edge string, answer func(question []byte) []byte) error
	Broadcast(topic string, message []byte) error
}

const (
	answerWait = 450 * time.Millisecond // the plan repeats a question after 500 ms
	servePause = time.Second            // after the bus refused to let us serve
	maxAsking  = 256                    // questions and answers that wait at once
)

// serveGrants answers other edges that leave, until ctx ends.
func (e *Edge) serveGrants(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.peers.Serve(ctx, e.cfg.ID, e.answerPeer); err != nil {
			e.log.Warn("cannot hear other edges' questions", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(servePause):
		}
	}
}

// answerPeer answers one question; nil: none that we know.
func (e *Edge) answerPeer(question []byte) []byte {
	var q gatewayv1.PeerRequest
	if err := proto.Unmarshal(question, &q); err != nil {
		return nil
	}
	var r gatewayv1.PeerResponse
	switch q := q.Request.(type) {
	case *gatewayv1.PeerRequest_Grant:
		r.Response = &gatewayv1.PeerResponse_Offer{Offer: e.gate.Offer(q.Grant)}
	case *gatewayv1.PeerRequest_Confirm:
		r.Response = &gatewayv1.PeerResponse_Confirmed{Confirmed: e.gate.Confirm(q.Confirm)}
	default:
		return nil
	}
	answer, err := proto.Marshal(&r)
	if err != nil {
		return nil
	}
	return answer
}

// heard is an answer for the plan, or why there is none.
type heard struct {
	h      *handover
	from   string
	number uint32
	answer *gatewayv1.PeerResponse
	asked  bool // it was a question, not a confirmation
	away   bool
}

// tell passes it on.
func (a *heard) tell(p *drain.Plan, now time.Time) []drain.Action {
	switch r := a.answer.GetResponse().(type) {
	case *gatewayv1.PeerResponse_Offer:
		r.Offer.Edge = a.from
		return p.Offer(now, r.Offer)
	case *gatewayv1.PeerResponse_Confirmed:
		p.Confirmed(now, a.from, a.number, r.Confirmed.Held)
	default:
		if a.asked {
			p.Failed(now, a.from, a.number, a.away)
		}
	}
	return nil
}

// ask puts a question to an edge; the answer comes to the governor's inbox. Without a
// bus the failure is told at once.
func (e *Edge) ask(h *handover, to string, q *gatewayv1.PeerRequest) {
	a := &heard{h: h, from: to, number: q.GetGrant().GetNumber() + q.GetConfirm().GetNumber(), asked: q.GetGrant() != nil}
	if e.peers == nil {
		a.away = true
		e.governor.hear(a)
		return
	}
	question, err := proto.Marshal(q)
	if err != nil {
		return
	}
	select {
	case e.governor.asking <- struct{}{}:
	default:
		return // the plan puts it again
	}
	e.governor.wait.Go(func() { // ends with the answer or after answerWait; Run waits for it
		defer func() { <-e.governor.asking }()
		ctx, cancel := context.WithTimeout(e.working, answerWait)
		defer cancel()
		answer, err := e.peers.Request(ctx, to, question)
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			return // the plan puts it again
		case err != nil:
			a.away = errors.Is(err, presence.ErrBusAway)
		default:
			a.answer = new(gatewayv1.PeerResponse)
			if proto.Unmarshal(answer, a.answer) != nil {
				a.answer = nil
			}
		}
		e.governor.hear(a)
	})
}
