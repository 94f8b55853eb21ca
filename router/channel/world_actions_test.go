package channel_test

import (
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
)

// sleep lets time pass, and the writers come to rest.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) publish(n *node) {
	kind := rapid.IntRange(0, 9).Draw(w.t, "kind")
	t := &tracked{id: fmt.Sprintf(`"e%d"`, len(w.pubs)), at: n}
	if kind == 0 && w.ns.Durability == namespace.Committed {
		t.id = fmt.Sprintf(`"bad%d"`, len(w.pubs))
	}
	t.p = &channel.Publication{Channel: name, Namespace: w.ns, Call: channel.NewCall(1), Event: history.Event{Data: []byte(t.id)}}
	if kind < 4 {
		t.p.Event.Key, t.p.Event.Scope = fmt.Sprint("k", kind), "b"
	}
	w.enter(n, t)
}

func (w *world) enter(n *node, t *tracked) {
	t.p.Measure()
	t.p.Since = time.Now()
	w.pubs = append(w.pubs, t)
	n.names[t.p] = t.id
	w.t.Logf("%s is published at %s", t.id, n.id)
	n.do(func(c *channel.Channel, s *channel.Step) { c.Publish(s, t.p) })
}

func (w *world) giveUp() {
	var waiting []*tracked
	for _, t := range w.pubs {
		if t.result == nil && !t.gaveUp && t.parent == nil && !t.at.dead {
			waiting = append(waiting, t)
		}
	}
	if len(waiting) == 0 {
		return
	}
	t := rapid.SampledFrom(waiting).Draw(w.t, "who gives up")
	t.gaveUp = true
	r := t.p.GiveUp()
	w.t.Logf("%s gives up: %s", t.id, resultOf(r))
	if t.p.Stage() == channel.Abandoned {
		t.result = &r
	}
}

func (w *world) see(n *node) {
	if n.at+1 < len(w.truth) {
		n.at++
		n.members.set(w.truth[n.at])
		n.views.View()
		if rapid.Bool().Draw(w.t, "viewed at once") {
			w.viewed(n)
		}
	}
}

func (w *world) viewed(n *node) { n.do(func(c *channel.Channel, s *channel.Step) { c.Viewed(s) }) }

// take takes a run; it goes to the writer, and comes back when the world lets it.
func (w *world) take(n *node) {
	if !n.ready {
		return
	}
	n.ready = false
	n.do(func(c *channel.Channel, s *channel.Step) {
		if r := c.Take(s, 3, 1<<20); r != nil {
			w.t.Logf("%s takes a run of %s", n.id, n.namesOf(r.Pubs))
			n.run = true
			n.source.mu.Lock()
			n.source.runs = append(n.source.runs, r)
			n.source.mu.Unlock()
		}
	})
}

// write lets the writer have what was taken, with a store that does this or that.
func (w *world) write(n *node, mode string) {
	if !n.run || !n.source.waits() {
		return
	}
	w.t.Logf("%s writes, %s", n.id, mode)
	w.store.set(mode)
	select {
	case n.source.wake <- struct{}{}:
	default:
	}
	sleep(time.Millisecond) // it may be waiting after a failure
	w.store.set("")
}

func (w *world) written(n *node) {
	for _, r := range n.source.written() {
		n.run = false
		n.do(func(c *channel.Channel, s *channel.Step) { c.Written(s, r) })
	}
}

var modes = []string{"", "", "", "", "heads away", "reads away", "not stored", "stored, not told", "late"}

// ask is a question of an edge.
func (w *world) ask(n *node) {
	a := &asked{at: n, q: &channel.Question{Ask: &gatewayv1.Ask{Channel: name}, Namespace: w.ns, MaxBytes: 1 << 20, Deadline: time.Now().Add(time.Hour)}}
	q := a.q
	in := channel.Look(n.c)
	if rapid.Bool().Draw(w.t, "position") {
		epoch := max(in.Shown.Epoch, 1)
		q.Ask.Epoch, q.Ask.Offset = &epoch, rapid.Uint64Range(0, in.Shown.Offset).Draw(w.t, "offset")
	} else {
		q.Ask.Last = rapid.Uint32Range(0, 5).Draw(w.t, "last")
	}
	q.Gone, q.Looked = func() bool { return false }, func() {}
	a.head = in.At.Offset
	if w.ns.Durability == namespace.Committed && !n.run { // else its events are yet to be sent
		a.head = w.store.head(w.ctx).Offset
	}
	q.Reply = func(answer *gatewayv1.Answer) {
		if a.replied++; a.replied > 1 {
			w.t.Fatal("a question is answered twice")
		}
		w.answered(a, answer)
	}
	w.asks = append(w.asks, a)
	n.do(func(c *channel.Channel, s *channel.Step) { c.Ask(s, q) })
}

// answered holds an answer against what was sent and stored.
func (w *world) answered(a *asked, answer *gatewayv1.Answer) {
	w.t.Logf("%s answers: %s", a.at.id, answerOf(answer))
	if answer.Status != gatewayv1.Status_STATUS_OK {
		return
	}
	if w.ns.Durability == namespace.Committed && answer.Head > w.store.head(w.ctx).Offset {
		w.t.Fatalf("told %d, the store has %d", answer.Head, w.store.head(w.ctx).Offset)
	}
	if !w.faults && len(w.nodes) == 1 && answer.Head < a.head {
		w.t.Fatalf("told %d, and it was %d when it was asked", answer.Head, a.head)
	}
	for i, e := range answer.Events {
		if i > 0 && e.Offset != answer.Events[i-1].Offset+1 {
			w.t.Fatalf("%d follows %d", e.Offset, answer.Events[i-1].Offset)
		}
		what := w.fanned[channel.Position{Epoch: answer.Epoch, Offset: e.Offset}]
		if w.ns.Durability == namespace.Committed {
			what = w.stored(e.Offset)
		}
		if string(e.Data) != what {
			w.t.Fatalf("offset %d is told as %s, and is %q", e.Offset, e.Data, what)
		}
	}
	if q := a.q.Ask; answer.Recovered && uint64(len(answer.Events)) != answer.Head-q.Offset {
		w.t.Fatalf("recovered from %d to %d with %d events", q.Offset, answer.Head, len(answer.Events))
	}
}

// fly has the store answer the oldest question; the answer comes later.
func (w *world) fly(n *node) {
	if len(n.reads) == 0 {
		return
	}
	q := n.reads[0]
	n.reads = n.reads[1:]
	if _, err := w.store.Store.Heads(w.ctx, []history.HeadQuery{{Channel: name}}); err != nil {
		w.t.Fatal(err)
	}
	r := history.Range{Channel: name, After: q.Key.After, Before: q.Key.Before, Reverse: q.Key.Reverse, Limit: q.Key.Limit}
	if q.Key.Head {
		r = history.Range{Channel: name, After: wire.MaxOffset, Limit: 1}
	}
	pages, err := w.store.Store.Read(w.ctx, []history.Range{r})
	if err != nil {
		w.t.Fatal(err)
	}
	p := &pages[0]
	res := &channel.ReadResult{Epoch: p.Epoch, Head: p.Head, Floor: p.First, Events: channel.BusEvents(p.Events), More: p.More}
	if q.Mark.Shown.Above(channel.Position{Epoch: p.Epoch, Offset: p.Head}) {
		w.t.Fatalf("%v was shown, and the store has less", q.Mark.Shown)
	}
	if rapid.IntRange(0, 9).Draw(w.t, "failed") == 0 {
		res = &channel.ReadResult{Err: channel.ReadFailed}
	}
	n.flown = append(n.flown, flown{q, res})
}

func (w *world) read(n *node) {
	if len(n.flown) == 0 {
		return
	}
	i := rapid.IntRange(0, len(n.flown)-1).Draw(w.t, "answer")
	f := n.flown[i]
	n.flown = slices.Delete(n.flown, i, i+1)
	n.do(func(c *channel.Channel, s *channel.Step) {
		c.Read(s, f.query.Key, f.query.Mark, f.result, []channel.Asker{f.query.Asker})
	})
}

// give hands the channel on to a router that it was offered to.
func (w *world) give(n *node) {
	if len(n.offers) == 0 {
		return
	}
	to := n.offers[0]
	n.offers = n.offers[1:]
	n.do(func(c *channel.Channel, s *channel.Step) {
		if n.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: to}) == nil {
			n.offers = slices.DeleteFunc(n.offers, func(id string) bool { return id == to })
			c.Withdrawn(s)
			return
		}
		if h := c.Give(s, to); h != nil {
			w.t.Logf("%s gives %d:%d to %s at %d", n.id, h.Meta.Epoch, h.Meta.Head, to, h.Revision)
			w.hands = append(w.hands, &hand{from: n.id, to: to, h: h})
		}
	})
}

// carry brings a hand-over a step further.
func (w *world) carry(i int) {
	h := w.hands[i]
	from, to := w.nodes[h.from], w.nodes[h.to]
	end := func(how func(*channel.Channel, *channel.Step)) {
		w.hands = slices.Delete(w.hands, i, i+1)
		if !from.dead {
			from.do(how)
		}
	}
	given := func(c *channel.Channel, s *channel.Step) { c.Given(s, h.h) }
	switch {
	case h.again:
		w.hands = slices.Delete(w.hands, i, i+1)
		if to != nil && !to.dead {
			w.accept(to, h)
		}
	case h.arrived || w.faults && rapid.IntRange(0, 9).Draw(w.t, "lost") == 0:
		end(given)
	case to == nil || to.left || w.faults && rapid.IntRange(0, 9).Draw(w.t, "refused") == 0:
		w.t.Logf("%s takes it back", h.from)
		end(func(c *channel.Channel, s *channel.Step) { c.Returned(s, h.h) })
	case to.dead:
		end(given)
	default:
		if w.accept(to, h); w.faults && rapid.IntRange(0, 5).Draw(w.t, "twice") == 0 {
			w.hands = append(w.hands, &hand{from: h.from, to: h.to, h: h.h, again: true})
		}
		h.arrived = true
	}
}

func (w *world) accept(n *node, h *hand) {
	n.do(func(c *channel.Channel, s *channel.Step) {
		copied := &channel.Handed{Revision: h.h.Revision, Meta: proto.CloneOf(h.h.Meta), Events: h.h.Events, Keys: h.h.Keys}
		took := c.Accept(s, copied)
		w.t.Logf("%s is handed %d:%d, moves %d: %v", n.id, copied.Meta.Epoch, copied.Meta.Head, copied.Meta.Moves, took)
	})
}

// seek asks one router more for a channel that is waited for.
func (w *world) seek(n *node) {
	if n.round == nil {
		if n.sought = min(n.sought, 1); n.sought == 0 {
			return
		}
		n.sought = 0
		if !n.c.Awaiting() {
			return
		}
		look := n.views.Look(time.Now())
		if len(n.members.Snapshot().Routers()) == 0 {
			n.sought = 1
			return
		}
		n.round = &round{revision: look.Revision(), nothing: true}
		for _, m := range n.views.Others() {
			n.round.left = append(n.round.left, m.Id)
		}
	}
	r := n.round
	if len(r.left) == 0 {
		n.round = nil
		if r.nothing {
			n.do(func(c *channel.Channel, s *channel.Step) { c.Nobody(s) })
		} else {
			n.sought = 1
		}
		return
	}
	i := rapid.IntRange(0, len(r.left)-1).Draw(w.t, "asked")
	id := r.left[i]
	r.left = slices.Delete(r.left, i, i+1)
	other := w.nodes[id]
	if other == nil || other.dead {
		r.nothing = r.nothing && n.views.Router(id) == nil
		return
	}
	other.do(func(c *channel.Channel, s *channel.Step) {
		taking := c.Asked(s, n.id, r.revision)
		w.t.Logf("%s asks %s at %d: %v", n.id, id, r.revision, taking)
		r.nothing = r.nothing && taking == gatewayv1.Taking_TAKING_NOTHING
	})
}

// passOn brings publications to the router that they were passed on to.
func (w *world) passOn() {
	if len(w.passes) == 0 {
		return
	}
	p := w.passes[0]
	w.passes = w.passes[1:]
	from, to := w.nodes[p.from], w.nodes[p.to]
	for _, q := range p.pubs {
		t := w.of(q)
		switch {
		case to != nil && !to.dead:
			child := &tracked{id: t.id, at: to, parent: t}
			child.p = &channel.Publication{
				Channel: name, Namespace: w.ns, Call: channel.NewCall(1), Forwarded: true, Hops: q.Hops + 1,
				Event: history.Event{Data: q.Event.Data, Key: q.Event.Key, Scope: q.Event.Scope},
			}
			w.enter(to, child)
		case w.ns.Durability == namespace.None || from.dead:
			w.ended(q, channel.NotOwner)
		default:
			q.Here = true
			q.Requeue()
			from.do(func(c *channel.Channel, s *channel.Step) { c.Publish(s, q) })
			continue
		}
		from.released(q)
	}
}

func (w *world) tick(n *node) {
	if n.watched {
		n.do(func(c *channel.Channel, s *channel.Step) { n.watched = c.Tick(s) })
	}
}
