package leave

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	answerWait = 450 * time.Millisecond // the plan repeats a question after 500 ms
	servePause = time.Second            // after the bus refused to let us serve
	maxAsking  = 256                    // questions and answers that wait at once
)

// Room is what an edge can offer to clients of others (door.Gate). It does not block.
type Room interface {
	Offer(*gatewayv1.GrantRequest) *gatewayv1.GrantOffer
	Confirm(*gatewayv1.GrantConfirm) *gatewayv1.GrantConfirmed
}

// Answer answers other edges that leave and ask edge for room, until ctx ends.
func Answer(ctx context.Context, peers Peers, edge string, room Room, log *slog.Logger) {
	for ctx.Err() == nil {
		err := peers.Serve(ctx, edge, func(question []byte) []byte { return answerTo(question, room) })
		if err != nil {
			log.Warn("cannot hear other edges' questions", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(servePause):
		}
	}
}

// answerTo answers one question; nil: none that we know.
func answerTo(question []byte, room Room) []byte {
	var q gatewayv1.PeerRequest
	if err := proto.Unmarshal(question, &q); err != nil {
		return nil
	}
	var r gatewayv1.PeerResponse
	switch q := q.Request.(type) {
	case *gatewayv1.PeerRequest_Grant:
		r.Response = &gatewayv1.PeerResponse_Offer{Offer: room.Offer(q.Grant)}
	case *gatewayv1.PeerRequest_Confirm:
		r.Response = &gatewayv1.PeerResponse_Confirmed{Confirmed: room.Confirm(q.Confirm)}
	default:
		return nil
	}
	answer, err := proto.Marshal(&r)
	if err != nil {
		return nil
	}
	return answer
}

// answered is an answer for the plan, or why there is none.
type answered struct {
	from   string
	number uint32
	answer *gatewayv1.PeerResponse
	asked  bool // it was a question, not a confirmation
	away   bool
}

// tell passes it on.
func (a *answered) tell(p *drain.Plan, now time.Time) []drain.Action {
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

// ask puts a question to an edge; the answer comes to the driver's inbox. Without a bus
// the failure is told at once.
func (r *driver) ask(to string, q *gatewayv1.PeerRequest) {
	g := r.g
	a := &answered{from: to, number: q.GetGrant().GetNumber() + q.GetConfirm().GetNumber(), asked: q.GetGrant() != nil}
	if g.deps.Peers == nil {
		a.away = true
		r.hear(a)
		return
	}
	question, err := proto.Marshal(q)
	if err != nil {
		return
	}
	select {
	case g.asking <- struct{}{}:
	default:
		return // the plan puts it again
	}
	g.wait.Go(func() { // ends with the answer or after answerWait; Governor.Run waits for it
		defer func() { <-g.asking }()
		ctx, cancel := context.WithTimeout(g.working, answerWait)
		defer cancel()
		answer, err := g.deps.Peers.Request(ctx, to, question)
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
		r.hear(a)
	})
}

func (r *driver) hear(a *answered) {
	select {
	case r.answers <- a:
	default:
	}
}
