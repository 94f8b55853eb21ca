package router

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	// maxTake is the most channels of one Take.
	maxTake    = 1000
	takeAgain  = 15 * time.Millisecond  // after "later"
	takeChain  = 8                      // names that are followed
	takeComing = 200 * time.Millisecond // after "it comes"
)

// search looks for who has a channel that waits. Owned by handover.run, or by the
// goroutine of the Take that it is in; in handover.searches it is guarded by mu.
type search struct {
	ch    *channel
	began time.Time
	end   time.Time
	next  time.Time // not before

	from   []*presence.Member // candidates
	step   int                // in from
	to     string             // who was named as having it; "": from[step] is asked
	chain  int                // names followed
	unsure bool               // somebody in this round could not answer
}

// expect begins a search; the channel's shard is locked.
func (h *handover) expect(ch *channel, end time.Time) {
	s := &search{ch: ch, began: time.Now(), end: end}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits = append(h.waits, s)
	h.searches = append(h.searches, s)
	signal(h.asking)
}

// awaits says that a channel is still waited for, and ours.
func (h *handover) awaits(ch *channel) bool {
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	v := h.own.look(ch.name, ch.known, &ch.tenure, time.Now())
	return ch.tenure.state == tenureAwaiting && (ch.tenure.owner(&v) == v.self || v.owner == "")
}

// moving says that this router's own hand of the channel was not answered yet.
func (s *search) moving() bool {
	s.ch.shard.mu.Lock()
	defer s.ch.shard.mu.Unlock()
	return s.ch.moving
}

// expire ends what has waited long enough: it begins anew, or is loaded.
func (h *handover) expire() {
	now := time.Now()
	for {
		h.mu.Lock()
		var s *search
		if len(h.waits) > 0 && !now.Before(h.waits[0].end) {
			s = h.waits[0]
			h.waits[0] = nil
			if h.waits = h.waits[1:]; len(h.waits) == 0 {
				h.waits = nil
			}
		}
		h.mu.Unlock()
		if s == nil {
			return
		}
		if h.awaits(s.ch) {
			h.count.late.Inc()
		}
		h.release(s.ch, false)
	}
}

// search sends what is due, one Take a router at a time.
func (h *handover) search(ctx context.Context, taking *sync.WaitGroup) {
	now := time.Now()
	h.mu.Lock()
	var due []*search
	kept := h.searches[:0]
	for _, s := range h.searches {
		if s.next.After(now) {
			kept = append(kept, s)
		} else {
			due = append(due, s)
		}
	}
	clear(h.searches[len(kept):])
	h.searches = kept
	h.mu.Unlock()
	if len(due) == 0 {
		return
	}
	revision := h.own.revision() // before the channels are found to be ours by it, or a newer one
	asked := make(map[string][]*search)
	for _, s := range due {
		if !now.Before(s.end) || !h.awaits(s.ch) {
			continue
		}
		if to := h.target(s); to != "" {
			asked[to] = append(asked[to], s)
		}
	}
	for to, all := range asked {
		for part := range slices.Chunk(all, maxTake) {
			// It asks one router and ends with the answer or its deadline; run waits for it.
			taking.Go(func() { h.takeFrom(ctx, to, revision, part) })
		}
	}
}

// target is who is to be asked next; "": nobody is left, and the channel begins.
func (h *handover) target(s *search) string {
	snapshot := h.router.members.Snapshot()
	switch {
	case s.to != "":
		return s.to
	case len(snapshot.Routers()) == 0:
		h.askAgain(s, takeAgain) // no view yet
		return ""
	}
	if s.from == nil {
		s.unsure = s.moving() // it may be there only after we asked
		s.from = candidates(snapshot, h.cfg.ID, s.ch.name)
	}
	if s.step < len(s.from) {
		return s.from[s.step].Id
	}
	if s.unsure {
		s.from, s.step = nil, 0
		h.askAgain(s, takeAgain)
		return ""
	}
	h.count.nobody.Inc()
	h.release(s.ch, true)
	return ""
}

func (h *handover) askAgain(s *search, after time.Duration) {
	s.next = time.Now().Add(after)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.searches = append(h.searches, s)
	if after == 0 {
		signal(h.asking)
	}
}

// takeFrom asks one router for channels.
func (h *handover) takeFrom(ctx context.Context, to string, revision uint64, all []*search) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.HandoverWait/2)
	defer cancel()
	response, err := h.take(ctx, to, revision, all)
	for i, s := range all {
		switch {
		case err == nil:
			h.answered(s, response.Results[i])
		case h.handless(to, err):
			h.answered(s, &gatewayv1.TakeResult{Taking: gatewayv1.Taking_TAKING_NOTHING})
		default:
			s.unsure = true // it may have it, and not be able to say so yet
			h.onwards(s)
		}
	}
}

// answered goes on after one router has said what it has.
func (h *handover) answered(s *search, r *gatewayv1.TakeResult) {
	switch {
	case r.Taking == gatewayv1.Taking_TAKING_COMING:
		h.askAgain(s, takeComing)
	case r.Taking == gatewayv1.Taking_TAKING_LATER:
		s.unsure = true
		h.onwards(s)
	case r.Taking == gatewayv1.Taking_TAKING_ELSEWHERE && s.chain < takeChain && r.Router != h.cfg.ID:
		s.to = r.Router
		s.chain++
		h.askAgain(s, 0)
	default:
		h.onwards(s)
	}
}

// onwards asks the next candidate.
func (h *handover) onwards(s *search) {
	s.to, s.chain = "", 0
	s.step++
	h.askAgain(s, 0)
}

// handless says that a router has gone, or is of a version that hands nothing. One that
// only cannot be reached may have left in order: who it gave its channels to will be
// seen.
func (h *handover) handless(id string, err error) bool {
	return h.member(id) == nil || status.Code(err) == codes.Unimplemented
}

func (h *handover) take(ctx context.Context, to string, revision uint64, all []*search) (*gatewayv1.TakeResponse, error) {
	m := h.member(to)
	if m == nil {
		return nil, errRouterGone
	}
	if h.peers.Down(m) {
		return nil, errRouterGone
	}
	conn, err := h.peers.Conn(m)
	if err != nil {
		return nil, err
	}
	request := &gatewayv1.TakeRequest{Router: h.cfg.ID, Revision: revision}
	for _, s := range all {
		request.Channels = append(request.Channels, s.ch.name)
	}
	h.count.takes.Inc()
	response, err := gatewayv1.NewHandoverServiceClient(conn).Take(ctx, request)
	if err == nil && len(response.Results) != len(all) {
		err = status.Error(codes.Internal, "a Take was not answered in full")
	}
	return response, err
}

type handoverService struct {
	gatewayv1.UnimplementedHandoverServiceServer
	*Router
}

// Take says what becomes of channels that another router wants, and hands it those
// that are here before all others.
func (s handoverService) Take(_ context.Context, request *gatewayv1.TakeRequest) (*gatewayv1.TakeResponse, error) {
	if len(request.Channels) > maxTake {
		return nil, status.Error(codes.InvalidArgument, "channels: at most 1000 are allowed")
	}
	response := &gatewayv1.TakeResponse{Results: make([]*gatewayv1.TakeResult, len(request.Channels))}
	for i, name := range request.Channels {
		if err := wire.CheckChannel(name); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		response.Results[i] = s.hand.asked(name, request.Router, request.Revision)
	}
	return response, nil
}

// asked answers for one channel.
func (h *handover) asked(name, from string, revision uint64) *gatewayv1.TakeResult {
	shard := h.table.lock(name)
	defer shard.mu.Unlock()
	ch := shard.channels[name]
	if ch == nil {
		ch = &channel{name: name} // never here
	}
	// What is in flight may make it known yet.
	known := ch.known || ch.inflight || len(ch.suspects) > 0
	v := h.own.look(name, known, &ch.tenure, time.Now())
	does, other := ch.tenure.ask(&v, from, revision, ch.moving)
	switch does {
	case askedGive:
		h.listLocked(ch, from, revision, true)
		return &gatewayv1.TakeResult{Taking: gatewayv1.Taking_TAKING_COMING}
	case askedLater:
		return &gatewayv1.TakeResult{Taking: gatewayv1.Taking_TAKING_LATER}
	case askedElsewhere:
		return &gatewayv1.TakeResult{Taking: gatewayv1.Taking_TAKING_ELSEWHERE, Router: other}
	}
	return &gatewayv1.TakeResult{Taking: gatewayv1.Taking_TAKING_NOTHING}
}
