package handover

import (
	"context"

	"github.com/spillway-io/spillway/router/channel"
)

// passer brings publications to another router, one message after the other, so that
// those of a channel stay in order.
type passer struct{ pubs []*channel.Publication }

// Pass sends publications to a router, after those that were passed before. It does not
// block. What waits is bounded by the queue of publications, in which it keeps its place.
func (h *Handover) Pass(to string, pubs []*channel.Publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.passers[to]; p != nil {
		p.pubs = append(p.pubs, pubs...)
		return
	}
	if h.ended { // everybody who called has been answered
		for _, p := range pubs {
			p.Finish(channel.NotOwner)
			h.Channels.Release(p)
		}
		return
	}
	p := &passer{pubs: pubs}
	h.passers[to] = p
	// It ends when nothing is left to pass on to that router; End waits for it.
	h.running.Go(func() { h.carry(to, p) })
}

func (h *Handover) carry(to string, p *passer) {
	for {
		h.mu.Lock()
		pubs := p.pubs
		if p.pubs = nil; len(pubs) == 0 {
			delete(h.passers, to)
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.work, h.cfg.PassDeadline)
		h.Forward(ctx, h.Views.Router(to), pubs)
		cancel()
		for _, q := range pubs {
			h.Channels.Release(q)
		}
	}
}
