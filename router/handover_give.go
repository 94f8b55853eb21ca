package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// handRetry is the pause after a receiver could not be reached.
const handRetry = 50 * time.Millisecond

var (
	errRouterGone  = errors.New("the router has left")
	errHandRefused = errors.New("the router takes no channels any more")
)

// offer is a channel that waits to be given.
type offer struct {
	ch       *channel
	revision uint64 // of the view by which the receiver owns it
	asked    bool   // the receiver wants it now
}

// giver hands channels to one router: one goroutine while there are any.
//
// A piece is made when its turn has come: until then its channels are served here.
// From that moment on they are not, whatever becomes of it: a piece that was
// not answered goes again to the same life of the receiver, and if that is over,
// what it held is lost (a new epoch, or the store). Only what was certainly not
// taken comes back.
type giver struct {
	// immutable
	h  *handover
	to string
	id uint64 // random: tells this sequence of pieces from others

	// guarded by handover.mu
	urgent, rest []offer

	// owned by the goroutine
	seq  uint64     // of the last piece
	life uint64     // of the receiver
	sent *handPiece // not answered yet; nil: none
	open *gift      // goes on in the next piece
}

// listLocked puts a channel into the queue of a giver; its shard is locked.
func (h *handover) listLocked(ch *channel, to string, revision uint64, asked bool) {
	if ch.listed && !asked {
		return
	}
	ch.listed = true
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.givers[to]
	if g == nil {
		g = &giver{h: h, to: to, id: rand.Uint64() | 1}
		h.givers[to] = g
		// It ends when nothing is left, or too late; Run waits for it.
		h.router.calls.Go(g.run)
	}
	if o := (offer{ch, revision, asked}); asked {
		g.urgent = append(g.urgent, o)
	} else {
		g.rest = append(g.rest, o)
	}
}

// giving says that channels wait to be given, or are on their way.
func (h *handover) giving() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.givers) > 0
}

func (g *giver) run() {
	ctx, cancel := context.WithTimeout(context.Background(), g.h.cfg.HandoverTimeout)
	defer cancel()
	began, before := time.Now(), uint64(0)
	for {
		err := g.connect(ctx)
		if err == nil {
			return // all is given
		}
		if g.seq != before {
			began, before = time.Now(), g.seq
		}
		if errors.Is(err, errHandRefused) || g.unreachable(began) || !pause(ctx, handRetry) {
			g.h.failed.Store(!errors.Is(err, errHandRefused))
			g.h.log.Warn("a router could not be handed all its channels", "to", g.to, "err", err)
			break
		}
	}
	g.lose()
	g.abandon()
}

// unreachable says that the receiver is gone, or down for longer than anybody waits.
func (g *giver) unreachable(since time.Time) bool {
	m := g.h.member(g.to)
	return m == nil || g.h.peers.Down(m) && time.Since(since) > g.h.cfg.HandoverWait
}

// connect opens a stream and gives until nothing is left.
func (g *giver) connect(ctx context.Context) error {
	m := g.h.member(g.to)
	if m == nil {
		return errRouterGone
	}
	conn, err := g.h.peers.Conn(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
			if g.finished() {
				return stream.CloseSend()
			}
			pause(ctx, time.Millisecond) // only busy channels are left
		}
		if g.sent == nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		answer, err := exchange(stream, g.sent.request)
		switch {
		case err != nil:
			return err
		case answer.Refused:
			g.refused()
			return errHandRefused
		}
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
	return stream.Recv()
}

// finished ends the giver if nothing is left.
func (g *giver) finished() bool {
	h := g.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(g.urgent)+len(g.rest) > 0 {
		return false
	}
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
		if open.done == 0 {
			g.bring(open) // nothing of it was sent
		} else {
			g.h.moved(open.ch)
			n++
		}
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
	signal(g.h.scan)
}

// unblockLocked lets committers have a channel again; its shard is locked.
func (h *handover) unblockLocked(ch *channel) {
	ch.moving = false
	if ch.readyLocked() {
		h.router.sequencer.push(ch)
	}
}

// moved ends the giving of a channel, and lets publishes that wait for it go on.
func (h *handover) moved(ch *channel) {
	ch.shard.mu.Lock()
	ch.moving = false
	ch.shard.mu.Unlock()
	h.release(ch, false)
}

// abandon forgets what was not given: it stays here, until its grace is over.
func (g *giver) abandon() {
	h := g.h
	h.mu.Lock()
	left := append(g.urgent, g.rest...)
	g.urgent, g.rest = nil, nil
	delete(h.givers, g.to)
	h.mu.Unlock()
	for _, o := range left {
		o.ch.shard.mu.Lock()
		o.ch.listed = false
		o.ch.shard.mu.Unlock()
		h.moved(o.ch)
	}
}

// next makes the piece of what comes first; nil: nothing can be given now.
func (g *giver) next() *handPiece {
	p := newHandPiece(g, g.seq+1)
	var busy []offer
	for !p.full() {
		if g.open == nil {
			o, ok := g.pop()
			if !ok {
				break
			}
			gift, again := g.give(o)
			if again {
				busy = append(busy, o)
			}
			if gift == nil {
				continue
			}
			g.open = gift
		}
		if p.add(g.open) {
			g.open = nil
		}
	}
	g.again(busy)
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

func (g *giver) again(offers []offer) {
	if len(offers) == 0 {
		return
	}
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	g.rest = append(g.rest, offers...)
}

// give lets a channel go. again: it must be tried again, something of it is in
// flight; no more is begun.
func (g *giver) give(o offer) (_ *gift, again bool) {
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
		return nil, false
	case due != g.to:
		ch.listed = false
		h.listLocked(ch, due, v.revision, false)
		h.unblockLocked(ch)
		return nil, false
	case ch.inflight || ch.async != nil && len(ch.async.acks) > 0:
		ch.moving = true // no committer takes of it after this run
		return nil, true
	case len(ch.suspects) > 0:
		h.unblockLocked(ch) // only the next run finds out what became of them
		return nil, true
	}
	ch.listed = false
	if !ch.known {
		t.state, t.to, t.revision = tenureGiven, g.to, revision // there is nothing to hand
		h.unblockLocked(ch)
		return nil, false
	}
	ch.moving = true // until the piece is answered
	packed := h.packLocked(ch, revision)
	m := packed.meta
	m.Moves = t.give(g.to, revision, standing{epoch: m.Epoch, head: m.Head, stored: m.Stored}, now).moves
	h.router.sequencer.dropAsyncLocked(ch, unknownOutcome)
	h.table.forgetLocked(ch)
	ch.keys = nil
	h.table.countKeysLocked(ch)
	return packed, false
}
