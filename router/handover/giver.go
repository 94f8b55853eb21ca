package handover

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
)

// retryAfter is the pause after a receiver could not be reached.
const retryAfter = 50 * time.Millisecond

var (
	errGone    = errors.New("the router has left")
	errRefused = errors.New("the router takes no channels any more")
	errAnswer  = errors.New("the router answered another message than it was sent")
	errNewLife = errors.New("the router was started anew")
)

// giver hands channels to one router: one goroutine while there are any.
//
// Channels are packed when their turn has come: until then they are served here. From
// that moment on they are not, whatever becomes of them. A message that was not answered
// goes again to the same life of the receiver; if that is over, what it held is lost (a
// new epoch, or the store). Only what was certainly not taken comes back.
type giver struct {
	// immutable
	h    *Handover
	to   string
	id   uint64        // random: tells this sequence of messages from others
	wake chan struct{} // capacity 1: channels were offered; signalled under Handover.mu

	// owned by the goroutine
	stream  grpc.BidiStreamingClient[gatewayv1.HandRequest, gatewayv1.HandResponse] // nil: none is open
	close   context.CancelFunc                                                      // ends stream
	life    uint64                                                                  // of the receiver; 0: not known
	seq     uint64                                                                  // of the last message
	success time.Time                                                               // when something was answered last
}

// Offers says that channels wait to be handed to a router. It does not block.
func (h *Handover) Offers(to string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.givers[to]
	if g == nil {
		if h.ended {
			return
		}
		g = &giver{h: h, to: to, id: rand.Uint64() | 1, wake: make(chan struct{}, 1), success: time.Now()}
		h.givers[to] = g
		// It ends when nothing is left, or too late; End waits for it.
		h.running.Go(g.run)
	}
	signal(g.wake)
}

func (g *giver) run() {
	defer func() {
		if g.stream != nil {
			g.close()
		}
	}()
	for {
		if err := g.reach(); err != nil {
			g.giveUp(err)
			return
		}
		all := g.h.Channels.Pack(g.to, messageChannels, messageBytes)
		if len(all) == 0 {
			if g.finished() {
				return
			}
			continue
		}
		err := g.give(all)
		if errors.Is(err, errNewLife) && time.Since(g.success) <= g.h.cfg.Timeout {
			g.h.Channels.Viewed() // offers what came back: the new life may take it
			continue
		}
		if err != nil {
			g.giveUp(err)
			return
		}
	}
}

// reach opens a stream to the receiver if none is open, before anything is taken out for it.
func (g *giver) reach() error {
	for began := time.Now(); ; {
		err := g.connect(false)
		if err == nil || hopeless(err) || time.Since(began) > g.h.cfg.Timeout || g.unreachable(began) || !pause(g.h.work, retryAfter) {
			return err
		}
	}
}

// finished ends the giver, unless something was offered since it looked.
func (g *giver) finished() bool {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	select {
	case <-g.wake:
		return false
	default:
		delete(g.h.givers, g.to)
		return true
	}
}

// giveUp leaves here what was not given: it is served until its grace is over.
func (g *giver) giveUp(err error) {
	h := g.h
	refused := errors.Is(err, errRefused)
	h.failed.Store(!refused)
	h.Log.Warn("a router could not be handed all its channels", "to", g.to, "err", err)
	h.mu.Lock()
	delete(h.givers, g.to)
	h.mu.Unlock()
	h.Channels.Withdraw(g.to)
	if refused || h.Views.Router(g.to) == nil { // others own what is left, or will in a moment
		pause(h.work, retryAfter)
		h.Channels.Viewed()
	}
}

// give hands over channels that were packed. An error ends the giver.
func (g *giver) give(all []*channel.Handed) error {
	messages := split(all)
	for i, m := range messages {
		known, err := g.deliver(m)
		if err == nil {
			g.end(m.ends, g.h.Channels.Given)
			g.h.metrics.given.Add(float64(len(m.ends)))
			continue
		}
		if !known {
			g.end(m.ends, g.h.Channels.Given)
			g.h.metrics.lost.Add(float64(len(m.ends)))
			messages[i] = &message{}
		}
		for _, rest := range messages[i:] {
			g.end(rest.ends, g.h.Channels.Returned)
			g.h.metrics.returned.Add(float64(len(rest.ends)))
		}
		return err
	}
	return nil
}

func (g *giver) end(all []*channel.Handed, how func(*channel.Handed)) {
	for _, h := range all {
		how(h)
	}
}

// deliver brings a message to the receiver, trying again while that makes sense. known:
// on an error the receiver certainly took nothing of it.
func (g *giver) deliver(m *message) (known bool, err error) {
	g.seq++
	m.request.Router, m.request.Life, m.request.Seq = g.h.cfg.ID, g.id, g.seq
	sent := false
	began := time.Now()
	for {
		if err = g.connect(sent); err == nil {
			sent = true
			var answer *gatewayv1.HandResponse
			answer, err = g.exchange(m.request)
			switch {
			case err == nil && answer.Refused:
				return true, errRefused
			case err == nil:
				g.success = time.Now()
				return true, nil
			}
			g.close()
			g.stream = nil
		}
		late := time.Since(g.success) > g.h.cfg.Timeout
		if hopeless(err) || late || g.unreachable(began) || !pause(g.h.work, retryAfter) {
			return !sent, err
		}
	}
}

// hopeless says that another try would not help. A router of a version without handing
// over is one such case: its channels go the ordinary way.
func hopeless(err error) bool {
	switch status.Code(err) {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, errNewLife)
}

// unreachable says that the receiver is gone, or down for longer than anybody waits.
func (g *giver) unreachable(since time.Time) bool {
	m := g.h.Views.Router(g.to)
	return m == nil || g.h.Peers.Down(m) && time.Since(since) > g.h.cfg.Wait
}

// connect opens a stream if none is open. sent: a message waits for its answer, which
// only the same life of the receiver can give.
func (g *giver) connect(sent bool) error {
	if g.stream != nil {
		return nil
	}
	m := g.h.Views.Router(g.to)
	if m == nil {
		return errGone
	}
	conn, err := g.h.Peers.Conn(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(g.h.work)
	late := time.AfterFunc(g.h.cfg.Wait, cancel)
	stream, err := gatewayv1.NewHandoverServiceClient(conn).Hand(ctx)
	late.Stop()
	if err != nil {
		cancel()
		return err
	}
	g.stream, g.close = stream, cancel
	hello, err := g.exchange(&gatewayv1.HandRequest{Router: g.h.cfg.ID, Life: g.id})
	switch {
	case err != nil:
	case hello.Life != g.life && sent:
		err = errNewLife
	default:
		g.life = hello.Life
		return nil
	}
	cancel()
	g.stream = nil
	return err
}

// exchange sends one message and waits for its answer.
func (g *giver) exchange(request *gatewayv1.HandRequest) (*gatewayv1.HandResponse, error) {
	late := time.AfterFunc(g.h.cfg.Wait, g.close)
	defer late.Stop()
	if err := g.stream.Send(request); err != nil {
		if _, reason := g.stream.Recv(); reason != nil {
			err = reason
		}
		return nil, err
	}
	for {
		answer, err := g.stream.Recv()
		switch {
		case err != nil:
			return nil, err
		case answer.Seq > request.Seq || request.Seq > 0 && answer.Life != g.life:
			return nil, errAnswer
		case answer.Seq == request.Seq:
			return answer, nil
		} // else one that came twice
	}
}
