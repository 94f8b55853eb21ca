package router

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// handRetry is the pause after a receiver could not be reached.
const handRetry = 50 * time.Millisecond

// handOffers is how many offers are looked at for one piece once there is something in it.
const handOffers = 4 * handPieceChannels

var (
	errRouterGone  = errors.New("the router has left")
	errHandRefused = errors.New("the router takes no channels any more")
	errHandAnswer  = errors.New("the router answered another piece than it was sent")
)

// offer is a channel that waits to be given.
type offer struct {
	ch       *channel
	revision uint64    // of the view by which the receiver owns it
	asked    bool      // the receiver wants it now
	since    time.Time // tried, and found busy; zero: not yet
}

// giver hands channels to one router: one goroutine while there are any.
//
// A piece is made when its turn has come: until then its channels are served here.
// From that moment on they are not, whatever becomes of it: a piece that was
// not answered goes again to the same life of the receiver, and if that is over,
// what it held is lost (a new epoch, or the store). Only what was certainly not
// taken comes back. It gives up when HandoverTimeout passes without an answer.
type giver struct {
	// immutable
	h      *handover
	to     string
	id     uint64 // random: tells this sequence of pieces from others
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1: there are offers

	// guarded by handover.mu
	urgent, rest []offer
	parked       map[*channel]bool // that have offers of it
	over         bool

	// owned by the goroutine
	seq  uint64      // of the last piece
	life uint64      // of the receiver
	sent *handPiece  // not answered yet; nil: none
	open *gift       // goes on in the next piece
	idle *time.Timer // cancels
}

// listLocked puts a channel into the queue of a giver; its shard is locked.
func (h *handover) listLocked(ch *channel, to string, revision uint64, asked bool) {
	if ch.listed && !asked {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.givers[to]
	if g == nil {
		if h.ended {
			return
		}
		g = h.newGiver(to)
		h.givers[to] = g
		// It ends when nothing is left, or too late; Run waits for it.
		h.router.calls.Go(g.run)
	}
	ch.listed = true
	if o := (offer{ch: ch, revision: revision, asked: asked}); asked {
		g.urgent = append(g.urgent, o)
	} else {
		g.rest = append(g.rest, o)
	}
	signal(g.wake)
}

func (h *handover) newGiver(to string) *giver {
	g := &giver{h: h, to: to, id: rand.Uint64() | 1, wake: make(chan struct{}, 1), parked: make(map[*channel]bool)}
	g.ctx, g.cancel = context.WithCancel(h.router.work)
	return g
}

// giving says that channels wait to be given, or are on their way.
func (h *handover) giving() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.givers) > 0
}

// stopGivers ends those that there are.
func (h *handover) stopGivers() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.givers {
		g.cancel()
	}
}

func (g *giver) run() {
	defer g.cancel()
	g.idle = time.AfterFunc(g.h.cfg.HandoverTimeout, g.cancel)
	defer g.idle.Stop()
	began, before := time.Now(), uint64(0)
	var err error
	for {
		if err = g.connect(); err == nil {
			return // all is given
		}
		if g.seq != before {
			began, before = time.Now(), g.seq
		}
		if hopeless(err) || g.unreachable(began) || !pause(g.ctx, handRetry) {
			break
		}
	}
	refused := errors.Is(err, errHandRefused)
	g.h.failed.Store(!refused)
	g.h.log.Warn("a router could not be handed all its channels", "to", g.to, "err", err)
	g.lose()
	g.abandon()
	if refused || g.h.member(g.to) == nil { // others own what is left, or will in a moment
		pause(g.ctx, handRetry)
		signal(g.h.scan)
	}
}

// hopeless says that another try would not help. A router of a version without handing
// over is one such case: its channels go the ordinary way.
func hopeless(err error) bool {
	switch status.Code(err) {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, errHandRefused)
}

// unreachable says that the receiver is gone, or down for longer than anybody waits.
func (g *giver) unreachable(since time.Time) bool {
	m := g.h.member(g.to)
	return m == nil || g.h.peers.Down(m) && time.Since(since) > g.h.cfg.HandoverWait
}

// connect opens a stream and gives until nothing is left.
func (g *giver) connect() error {
	m := g.h.member(g.to)
	if m == nil {
		return errRouterGone
	}
	conn, err := g.h.peers.Conn(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	late := time.AfterFunc(g.h.cfg.HandoverWait, cancel)
	defer late.Stop()
	stream, err := gatewayv1.NewHandoverServiceClient(conn).Hand(ctx)
	if err != nil {
		return err
	}
	hello, err := exchange(stream, &gatewayv1.HandRequest{Router: g.h.cfg.ID, Life: g.id})
	if err != nil {
		return err
	}
	if hello.Life != g.life {
		g.lose()
		g.life = hello.Life
	}
	for {
		if g.sent == nil && g.next() == nil {
			if late.Stop(); g.finished() {
				return stream.CloseSend()
			}
			select { // only busy channels are left
			case <-g.wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		late.Reset(g.h.cfg.HandoverWait)
		answer, err := exchange(stream, g.sent.request)
		switch {
		case err != nil:
			return err
		case answer.Life != g.life:
			return errHandAnswer
		case answer.Refused:
			g.refused()
			return errHandRefused
		}
		g.idle.Reset(g.h.cfg.HandoverTimeout)
		g.given()
	}
}

// exchange sends one message and waits for its answer.
func exchange(stream grpc.BidiStreamingClient[gatewayv1.HandRequest, gatewayv1.HandResponse], request *gatewayv1.HandRequest) (*gatewayv1.HandResponse, error) {
	if err := stream.Send(request); err != nil {
		if _, reason := stream.Recv(); reason != nil {
			err = reason
		}
		return nil, err
	}
	for {
		answer, err := stream.Recv()
		switch {
		case err != nil:
			return nil, err
		case answer.Seq > request.Seq:
			return nil, errHandAnswer
		case answer.Seq == request.Seq:
			return answer, nil
		} // else one that came twice
	}
}

// finished ends the giver if nothing is left.
func (g *giver) finished() bool {
	h := g.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(g.urgent)+len(g.rest)+len(g.parked) > 0 {
		return false
	}
	g.over = true
	delete(h.givers, g.to)
	return true
}

// given ends a piece that was taken.
func (g *giver) given() {
	g.h.count.given.Add(float64(g.ended()))
}

// lose ends a piece of which nobody knows whether it was taken.
func (g *giver) lose() {
	n := g.ended()
	if open := g.open; open != nil {
		g.open = nil
		g.bring(open) // nobody has all of it
		signal(g.h.scan)
	}
	g.seq = 0
	g.h.count.lost.Add(float64(n))
}

// bring puts back what was certainly not taken.
func (g *giver) bring(back *gift) {
	g.h.restore(back)
	g.h.moved(back.ch)
	g.h.count.back.Inc()
}

// ended lets publishes go on their way to the new owner.
func (g *giver) ended() int {
	if g.sent == nil {
		return 0
	}
	n := 0
	for _, gift := range g.sent.gifts {
		if gift != g.open {
			g.h.moved(gift.ch)
			n++
		}
	}
	g.sent = nil
	return n
}

// refused puts everything back: another will own it soon.
func (g *giver) refused() {
	back := g.sent.gifts
	if g.open != nil && back[len(back)-1] != g.open {
		back = append(back, g.open)
	}
	g.sent, g.open, g.seq = nil, nil, 0
	for _, gift := range back {
		g.bring(gift)
	}
}

// moved ends the giving of a channel, and lets publishes that wait for it go on.
func (h *handover) moved(ch *channel) {
	ch.shard.mu.Lock()
	ch.freeLocked()
	ch.shard.mu.Unlock()
	h.release(ch, false)
}

// abandon forgets what was not given: it stays here, until its grace is over.
func (g *giver) abandon() {
	h := g.h
	h.mu.Lock()
	left := make([]*channel, 0, len(g.urgent)+len(g.rest)+len(g.parked))
	for _, o := range append(g.urgent, g.rest...) {
		left = append(left, o.ch)
	}
	left = slices.AppendSeq(left, maps.Keys(g.parked))
	g.urgent, g.rest, g.parked, g.over = nil, nil, nil, true
	delete(h.givers, g.to)
	h.mu.Unlock()
	for _, ch := range left {
		g.unpark(ch)
		h.moved(ch)
	}
}

// next makes the piece of what comes first; nil: nothing can be given now.
func (g *giver) next() *handPiece {
	p := newHandPiece(g, g.seq+1)
	for n := 0; !p.full() && (len(p.gifts) == 0 || n < handOffers); n++ {
		if g.open == nil {
			o, ok := g.pop()
			if !ok {
				break
			}
			if g.open = g.give(o); g.open == nil {
				continue
			}
		}
		if p.add(g.open) {
			g.open = nil
		}
	}
	if len(p.gifts) == 0 {
		return nil
	}
	g.seq++
	g.sent = p
	return p
}

func (g *giver) pop() (offer, bool) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	for _, queue := range []*[]offer{&g.urgent, &g.rest} {
		if len(*queue) > 0 {
			o := (*queue)[0]
			(*queue)[0] = offer{}
			if *queue = (*queue)[1:]; len(*queue) == 0 {
				*queue = nil
			}
			return o, true
		}
	}
	return offer{}, false
}

// give lets a channel go; nil: it need not, or must wait until nothing of it is in flight.
func (g *giver) give(o offer) *gift {
	h, ch := g.h, o.ch
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	t := &ch.tenure
	now := time.Now()
	v := h.own.look(ch.name, ch.known, t, now)
	due := t.due(&v)
	revision := v.revision
	if o.asked && o.revision > v.revision {
		due, revision = g.to, o.revision // the receiver knows more
	}
	switch {
	case t.state != tenureHeld && t.state != tenureLeaving || due == "":
		ch.listed = false
		if t.state != tenureGiven { // else the piece that it is in ends it
			h.unblockLocked(ch)
		}
		return nil
	case due != g.to:
		ch.listed = false
		h.listLocked(ch, due, v.revision, false)
		h.unblockLocked(ch)
		return nil
	case ch.inflight || len(ch.suspects) > 0:
		g.parkLocked(o, now)
		return nil
	}
	ch.listed = false
	if !ch.known {
		t.state, t.to, t.revision = tenureGiven, g.to, revision // there is nothing to hand
		h.unblockLocked(ch)
		return nil
	}
	ch.moving = true // until the piece is answered
	h.holdLocked(ch, now)
	packed := h.packLocked(ch, revision)
	m := packed.meta
	m.Moves = t.give(g.to, revision, standing{epoch: m.Epoch, head: m.Head, stored: m.Stored}, now).moves
	h.table.forgetLocked(ch)
	ch.keys = nil
	h.table.countKeysLocked(ch)
	return packed
}
