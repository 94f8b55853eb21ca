package handover

import (
	"context"

	"github.com/spillway-io/spillway/router/channel"
)

// passer brings publications to another router, one message after the other, so that
// those of a channel stay in order.
type passer struct{ pubs []*channel.Publication }

// way is what a passer serves. A message is answered when all in it are, and two routers
// that do not see the same may pass a publication back and forth. If it had to wait behind
// the message in which it went the same way before, it would wait for itself. So what has
// come further has a passer of its own: each message waits for such as have come further
// yet, and MaxHops ends that.
type way struct {
	to   string
	come uint32 // routers that have passed it on, the one that it came to first among them
}

func wayOf(to string, p *channel.Publication) way {
	if !p.Forwarded {
		return way{to: to}
	}
	return way{to, p.Hops + 1}
}

// Pass sends publications to a router, after those that were passed before. It does not
// block. What waits is bounded by the queue of publications, in which it keeps its place.
func (h *Handover) Pass(to string, pubs []*channel.Publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pub := range pubs {
		w := wayOf(to, pub)
		p := h.passers[w]
		switch {
		case p != nil:
			p.pubs = append(p.pubs, pub)
		case h.ended: // everybody who called has been answered
			pub.Finish(channel.NotOwner)
			h.Channels.Release(pub)
		default:
			p = &passer{pubs: []*channel.Publication{pub}}
			h.passers[w] = p
			// It ends when nothing is left to pass on that way; End waits for it.
			h.running.Go(func() { h.carry(w, p) })
		}
	}
}

func (h *Handover) carry(w way, p *passer) {
	for {
		h.mu.Lock()
		pubs := p.pubs
		if p.pubs = nil; len(pubs) == 0 {
			delete(h.passers, w)
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.work, h.cfg.PassDeadline)
		h.Forward(ctx, h.Views.Router(w.to), pubs)
		cancel()
		for _, q := range pubs {
			h.Channels.Release(q)
		}
	}
}
