package feed

import (
	"slices"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// groupKey tells pulls apart that cannot share an answer.
type groupKey struct {
	hasPosition   bool
	openOnly      bool
	first         bool
	epoch, offset uint64
	last          uint32
}

// group is the pulls of one channel that share an ask and its encoded frames.
type group struct {
	key      groupKey
	waiters  []waiter
	asked    bool
	lost     bool // the position that was pulled from cannot be had; key is where to go on
	retries  uint8
	retryAt  time.Time // if not asked
	maxBytes int       // of the first waiter
}

type waiter struct {
	sink      int
	conn, sub uint64
	maxBytes  int
	told      bool // Pending
}

// pull takes a Pull. The sink is interested from now on.
func (f *feed) pull(s *step, p *Pull) {
	f.sinks.add(p.Sink)
	if w := f.work; w != nil {
		w.lingerAt = time.Time{}
	}
	wt := waiter{sink: p.Sink, conn: p.Conn, sub: p.Sub, maxBytes: p.MaxBytes}
	if !p.First && p.HasPosition && f.known && p.Epoch == f.epoch && p.Offset == f.delivered {
		f.tell(s, wt, &Piece{Status: OK, Epoch: f.epoch, Head: f.delivered, Recovered: true, From: p.Offset, Live: true, HasHistory: f.history})
		return
	}
	key := groupKey{hasPosition: p.HasPosition, openOnly: p.OpenOnly, first: p.First, last: p.Last}
	if p.HasPosition {
		key.epoch, key.offset, key.last = p.Epoch, p.Offset, 0
	}
	w := f.busy()
	for _, g := range w.groups {
		if g.key == key {
			if g.retries > 0 {
				f.tellPending(s, &wt)
			}
			g.waiters = append(g.waiters, wt)
			return
		}
	}
	g := &group{key: key, waiters: []waiter{wt}, maxBytes: p.MaxBytes}
	w.groups = append(w.groups, g)
	f.askGroup(s, g)
}

func (f *feed) askGroup(s *step, g *group) {
	a := &gatewayv1.Ask{
		Channel: f.channel, Last: g.key.last, OpenOnly: g.key.openOnly, MaxBytes: uint32(max(g.maxBytes, 1)),
		SeenEpoch: f.epoch, SeenOffset: f.seen,
	}
	if g.key.last > 0 {
		a.MaxBytes = 0 // it would cut the oldest of the n
	}
	if g.key.hasPosition {
		epoch := g.key.epoch
		a.Epoch, a.Offset = &epoch, g.key.offset
	}
	g.asked = true
	s.do(action{kind: actAsk, ask: a, flight: flight{kind: askPull, f: f, group: g, epoch: f.epoch, seen: f.seen}})
}

// repeatGroup asks again, at the pace of all that ask again: when routers or the
// store come back, everybody who waited would else ask at once.
func (f *feed) repeatGroup(s *step, g *group) {
	if s.again < 1 {
		s.count[countPutOff]++
		g.retryAt = s.now.Add(beat + s.jitter(time.Second))
		return
	}
	s.again--
	f.askGroup(s, g)
}

// pulled takes the answer to askGroup.
func (f *feed) pulled(s *step, fl flight, a *gatewayv1.Answer) {
	g := fl.group
	g.asked = false
	if f.gone || len(g.waiters) == 0 {
		f.endGroup(s, g)
		return
	}
	switch {
	case refused(a.Status):
		f.refuse(s, g, a)
		return
	case a.Status != gatewayv1.Status_STATUS_OK:
		f.restGroup(s, g, a.RetryAfterMs)
		return
	case !f.learn(s, a):
		s.count[countBadAnswers]++
		f.restGroup(s, g, a.RetryAfterMs)
		return
	}
	done := true
	switch k := g.key; {
	case k.hasPosition && a.Recovered && k.epoch == f.epoch:
		done = f.serve(s, g, a, k.offset)
	case f.goOn(s, g, a):
		return
	case !k.hasPosition && k.last > 0 && len(a.Events) > 0:
		done = f.serve(s, g, a, a.From)
	default:
		f.proceed(s)
		f.serveHead(s, g, a)
	}
	if !done {
		f.restGroup(s, g, a.RetryAfterMs)
		return
	}
	f.endGroup(s, g)
}

// goOn asks for what history still has, if subscribers that were live in a channel
// fell behind and their position is lost. Who begins is told of the head instead.
func (f *feed) goOn(s *step, g *group, a *gatewayv1.Answer) bool {
	k, next := &g.key, a.From
	if k.epoch < f.epoch {
		next = min(a.Base, a.Head)
	}
	if k.first || !k.hasPosition || !a.HasHistory || k.epoch == f.epoch && next <= k.offset {
		return false
	}
	*k = groupKey{hasPosition: true, openOnly: k.openOnly, epoch: f.epoch, offset: next}
	f.proceed(s)
	g.lost = true
	f.askGroup(s, g)
	return true
}

// serve gives every waiter of g the events after from: those of the answer and,
// if the feed is past it, those that were delivered meanwhile. It reports false
// if there is neither an event nor an end to be told: the router is asked again.
func (f *feed) serve(s *step, g *group, a *gatewayv1.Answer, from uint64) bool {
	frames := f.frames(s, from, a)
	f.fill(s, from, frames)
	f.proceed(s)
	last := from + uint64(len(frames))
	whole := !a.More && len(frames) == len(a.Events) && last >= a.Head
	if whole && f.delivered > last {
		more, ok := f.since(last)
		if whole = ok; ok {
			frames = append(slices.Clip(frames), more...)
		}
	}
	if len(frames) == 0 && !whole {
		return false
	}
	p := Piece{
		Status: OK, Epoch: f.epoch, Head: max(a.Head, f.delivered), HasHistory: f.history,
		Recovered: g.key.hasPosition && !g.lost, From: from,
	}
	for _, wt := range g.waiters {
		n := fit(frames, wt.maxBytes)
		piece := p
		piece.Frames = frames[:n:n]
		piece.Live = whole && n == len(frames)
		if !piece.Live {
			piece.Next = from + uint64(n)
		}
		f.tell(s, wt, &piece)
	}
	return true
}

// serveHead gives every waiter of g a place in the live flow and nothing before.
func (f *feed) serveHead(s *step, g *group, a *gatewayv1.Answer) {
	head := max(a.Head, f.delivered)
	for _, wt := range g.waiters {
		f.tell(s, wt, &Piece{Status: OK, Epoch: f.epoch, Head: head, From: head, Live: true, HasHistory: f.history})
	}
}

// fit is how many frames fit into max bytes; at least one, if there is any.
func fit(frames []Frame, max int) int {
	size := 0
	for i := range frames {
		if size += len(frames[i].Text); size > max && i > 0 {
			return i
		}
	}
	return len(frames)
}

func (f *feed) refuse(s *step, g *group, a *gatewayv1.Answer) {
	status := map[gatewayv1.Status]Status{
		gatewayv1.Status_STATUS_FORBIDDEN: Forbidden,
		gatewayv1.Status_STATUS_NOT_FOUND: NotFound,
		gatewayv1.Status_STATUS_INVALID:   Invalid,
	}[a.Status]
	for _, wt := range g.waiters {
		f.tell(s, wt, &Piece{Status: status, Message: a.Message})
	}
	f.endGroup(s, g)
}

// restGroup asks again later. Whoever is new hears that it may take a while.
func (f *feed) restGroup(s *step, g *group, afterMS uint32) {
	g.retryAt = s.now.Add(s.retry(g.retries, afterMS))
	g.retries = min(g.retries+1, 20)
	for i := range g.waiters {
		f.tellPending(s, &g.waiters[i])
	}
}

func (f *feed) tellPending(s *step, wt *waiter) {
	if !wt.told {
		wt.told = true
		f.tell(s, *wt, &Piece{Status: Pending})
	}
}

func (f *feed) tell(s *step, wt waiter, p *Piece) {
	p.Conn, p.Sub, p.Channel = wt.conn, wt.sub, f.channel
	s.do(action{kind: actPiece, sink: wt.sink, piece: p})
}

func (f *feed) endGroup(s *step, g *group) {
	g.waiters = nil
	w := f.work
	if w == nil {
		return
	}
	w.groups = slices.DeleteFunc(w.groups, func(have *group) bool { return have == g })
	if len(w.groups) == 0 {
		w.groups = nil
		f.dropRecent(s)
	}
}

// cancel forgets the waiters that match, and groups without any.
func (f *feed) cancel(s *step, match func(waiter) bool) {
	if f.work == nil {
		return
	}
	for _, g := range slices.Clone(f.work.groups) {
		g.waiters = slices.DeleteFunc(g.waiters, match)
		if len(g.waiters) == 0 {
			f.endGroup(s, g)
		}
	}
}

// leave ends the interest of a sink. After the last one the position is
// forgotten; only the interest on the bus lingers.
func (f *feed) leave(s *step, sink int) {
	f.sinks.remove(sink)
	f.cancel(s, func(wt waiter) bool { return wt.sink == sink })
	if !f.sinks.empty() {
		return
	}
	w := f.busy()
	f.dropHeld(s)
	f.dropRecent(s)
	if w.repair != repairAsked {
		w.repair = repairNone
	}
	f.known, f.fresh, f.found, f.delivered = false, false, false, 0
	if w.lingerAt.IsZero() {
		w.lingerAt = s.now.Add(s.cfg.Linger)
	}
}

// askHead asks where the head is.
func (f *feed) askHead(s *step) {
	s.do(action{
		kind:   actAsk,
		ask:    &gatewayv1.Ask{Channel: f.channel, SeenEpoch: f.epoch, SeenOffset: f.seen},
		flight: flight{kind: askHead, f: f, epoch: f.epoch, seen: f.seen},
	})
}

// checked takes the answer to askHead. What it shows may be on its way: the clock
// of the hole decides.
func (f *feed) checked(s *step, a *gatewayv1.Answer) {
	switch {
	case f.gone || f.sinks.empty() || refused(a.Status):
	case a.Status != gatewayv1.Status_STATUS_OK:
		s.do(action{kind: actCheck, after: time.Duration(min(a.RetryAfterMs, 60_000)) * time.Millisecond})
	case !f.known || !f.learn(s, a):
	case f.seen > f.delivered:
		if f.work == nil || f.work.repair == repairNone {
			f.found = true
		}
		f.proceed(s)
	default:
		f.found, f.behind = false, 0
		f.proceed(s)
	}
}
