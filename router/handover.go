package router

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/api"
	machine "github.com/spillway-io/spillway/router/channel"
)

// maxHops is how many routers may pass a publish on before it is served, or refused,
// where it is.
const maxHops = 4

// handover moves channels between routers as their owners change: it gives what
// others own by now (handover_give.go), asks for what this router owns and does not
// have (handover_take.go), takes what it is given (handover_accept.go), and passes on
// publishes that came to the wrong router. Who may number a channel is decided by
// its tenure (handover_tenure.go), which is pure.
//
// Goroutines: run, one for each router that is given channels, one for each that
// publishes are passed on to, one for each Take, all waited for by Router.Run.
//
// Bounds: a piece is at most handPieceBytes, one for each receiver is under way; what
// waits for a hand is bounded by the queue of publishes and by the asks of edges.
//
// Lock order: a shard's mu, then handover.mu.
type handover struct {
	// immutable after newHandover
	router *Router
	cfg    *Config
	table  *table
	own    *ownership
	peers  api.Peers
	log    *slog.Logger
	count  handoverCounters
	life   uint64        // random, new with every start
	scan   chan struct{} // capacity 1: look for what is to be given
	asking chan struct{} // capacity 1: searches wait

	closed atomic.Bool // takes nothing more
	failed atomic.Bool // a router that should have taken channels cannot be reached

	mu       sync.Mutex // guards below
	ended    bool       // no goroutine is begun any more
	givers   map[string]*giver
	passers  map[string]*passer
	holds    []holding          // channels of which nothing is taken, in order of since
	searches []*search          // to be sent
	waits    []*search          // all, in order of their ends
	taken    map[string]*gifted // by giver
}

func newHandover(r *Router) *handover {
	h := &handover{
		router: r, cfg: &r.cfg, table: r.table, own: r.own, peers: r.peers, log: r.log, count: r.metrics.handover,
		life: rand.Uint64() | 1, scan: make(chan struct{}, 1), asking: make(chan struct{}, 1),
		givers: make(map[string]*giver), passers: make(map[string]*passer), taken: make(map[string]*gifted),
	}
	r.sequencer.hand = h
	return h
}

// turnLocked says whose turn it is to serve a channel; its shard is locked. If it
// must wait, others are asked, and release is called at the end.
func (h *handover) turnLocked(ch *channel) turn {
	t := &ch.tenure
	if t.state == tenureHeld && t.seq == h.own.seq() && t.breaks == h.own.breaks() && !h.own.departing.Load() {
		return turnServe
	}
	now := time.Now()
	v := h.own.look(ch.name, ch.known, t, now)
	before := t.state
	turn := t.use(&v, now, h.cfg.HandoverWait, h.cfg.HandoverGrace)
	if t.state == tenureAwaiting && before != tenureAwaiting {
		h.expect(ch, t.until)
	}
	return turn
}

// trustedLocked says that the position of a channel may be told without a look at
// the store.
func (h *handover) trustedLocked(ch *channel) bool {
	if time.Now().Before(ch.late) {
		return false
	}
	// namespace.Nobody else numbers it before it is given, or was waited for.
	if t := &ch.tenure; t.state == tenureLeaving && time.Since(t.lost) < min(h.cfg.HandoverWait, h.cfg.HandoverGrace) {
		return h.own.settled(ch.name, ch.trust, ch.settled)
	}
	return h.own.trusted(ch.name, ch.trust, ch.settled)
}

// release wakes what waited for a channel. nobody: it is known that no other has it.
func (h *handover) release(ch *channel, nobody bool) {
	ch.shard.mu.Lock()
	if nobody {
		v := h.own.look(ch.name, ch.known, &ch.tenure, time.Now())
		ch.tenure.settle(&v)
	}
	waiters := ch.waiters
	ch.waiters = nil
	push := ch.readyLocked()
	ch.shard.mu.Unlock()
	if push {
		h.router.sequencer.push(ch)
	}
	for _, wake := range waiters {
		wake()
	}
}

// run follows the views and the clock, until ctx ends.
func (h *handover) run(ctx context.Context) error {
	var taking sync.WaitGroup
	defer taking.Wait()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		changed := h.router.members.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			h.offer()
		case <-h.scan:
			h.offer()
		case <-h.asking:
			h.search(ctx, &taking)
		case <-ticker.C:
			h.expire()
			h.relieve()
			h.search(ctx, &taking)
		}
	}
}

// offer lists every channel that another owns by now for its giver, and wakes those
// that wait for a hand that is not for us.
func (h *handover) offer() {
	now := time.Now()
	for i := range h.table.shards {
		var stray []*channel
		s := &h.table.shards[i]
		s.mu.Lock()
		for _, ch := range s.channels {
			t := &ch.tenure
			if t.state == tenureNone || t.state == tenureGiven {
				continue
			}
			v := h.own.look(ch.name, ch.known, t, now)
			awaited := t.state == tenureAwaiting
			if to := t.due(&v); to != "" {
				h.listLocked(ch, to, v.revision, false)
			} else if awaited && t.state != tenureAwaiting {
				stray = append(stray, ch)
			}
		}
		s.mu.Unlock()
		for _, ch := range stray {
			h.release(ch, false)
		}
	}
}

// leave gives everything to those who own it without this router, until ctx ends.
func (h *handover) leave(ctx context.Context) {
	defer h.closed.Store(true)
	if !h.own.company(h.own.current()) {
		return // nobody stays
	}
	h.awaitEcho(ctx)
	h.own.depart()
	h.failed.Store(false)
	began := time.Now()
	h.offer()
	for {
		if !h.giving() {
			// Past the grace nothing more is served here: what is left was busy all the time.
			if h.left() == 0 || h.failed.Load() || time.Since(began) > h.cfg.HandoverGrace {
				break
			}
			h.offer() // what was busy, or came back
		}
		if !pause(ctx, 5*time.Millisecond) {
			break
		}
	}
	h.stopGivers()
	h.log.Info("channels were handed over", "left", h.left(), "took", time.Since(began))
}

// end lets no goroutine begin any more, so that the others can be waited for.
func (h *handover) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
}

// awaitEcho waits until this router's own view shows that it leaves: the others'
// do at about the same time, and then send here nothing more.
func (h *handover) awaitEcho(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.HandoverWait/2)
	defer cancel()
	for {
		changed := h.router.members.Changed()
		routers := h.router.members.Snapshot().Routers()
		there := false
		for _, m := range routers {
			there = there || m.Id == h.cfg.ID
		}
		if !there {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// left counts channels that should be given and are not.
func (h *handover) left() int {
	n, now := 0, time.Now()
	for i := range h.table.shards {
		s := &h.table.shards[i]
		s.mu.Lock()
		for _, ch := range s.channels {
			v := h.own.look(ch.name, ch.known, &ch.tenure, now)
			if ch.known && ch.tenure.due(&v) != "" {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// passer brings publishes to another router, one message after the other, so that
// those of a channel stay in order.
type passer struct {
	pubs []*machine.Publication
}

// passOn sends what a batch has of another's channel to its owner; false: nothing is
// left to be served here.
func (h *handover) passOn(w *work) bool {
	owner := h.ownerOf(w.ch)
	if owner == nil {
		return true
	}
	kept := w.pubs[:0]
	var passed []*machine.Publication
	for _, p := range w.pubs {
		if p.Here || p.Hops >= maxHops {
			kept = append(kept, p)
		} else {
			passed = append(passed, p)
		}
	}
	if w.pubs = kept; len(passed) > 0 {
		h.count.passed.Add(float64(len(passed)))
		h.pass(owner, passed)
	}
	return len(kept) > 0
}

// ownerOf is the other router that owns a channel; nil: there is none.
func (h *handover) ownerOf(ch *channel) *presence.Member {
	ch.shard.mu.Lock()
	v := h.own.look(ch.name, ch.known, &ch.tenure, time.Now())
	id := ch.tenure.owner(&v)
	ch.shard.mu.Unlock()
	if id == h.cfg.ID {
		return nil
	}
	return h.member(id)
}

func (h *handover) member(id string) *presence.Member {
	return h.router.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id})
}

func (h *handover) pass(owner *presence.Member, pubs []*machine.Publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.passers[owner.Id]; p != nil {
		p.pubs = append(p.pubs, pubs...)
		return
	}
	if h.ended { // everybody who called has been answered
		h.router.sequencer.finishAll(pubs, machine.NotOwner)
		return
	}
	p := &passer{pubs: pubs}
	h.passers[owner.Id] = p
	// It ends when nothing is left to pass on to that router; Run waits for it.
	h.router.calls.Go(func() { h.carry(owner, p) })
}

func (h *handover) carry(owner *presence.Member, p *passer) {
	for {
		h.mu.Lock()
		pubs := p.pubs
		if p.pubs = nil; len(pubs) == 0 {
			delete(h.passers, owner.Id)
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.router.work, h.cfg.API.PublishDeadline)
		h.router.api.Forward(ctx, owner, pubs)
		cancel()
		for _, q := range pubs {
			h.router.sequencer.release(q)
		}
	}
}
