package channel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/renewal"
	"github.com/spillway-io/spillway/router/writer"
)

// world is routers with one channel, each with its own view of the others, a store, and
// everything that is under way between them. The writer is the real one.
type world struct {
	t       *rapid.T
	ctx     context.Context
	ns      *namespace.Namespace
	faults  bool // of routers and of what is between them
	store   *faultyStore
	truth   []*presence.Snapshot // all views, oldest first
	serving map[string]bool
	nodes   map[string]*node
	hands   []*hand
	passes  []pass
	pubs    []*tracked
	asks    []*asked
	fanned  map[channel.Position]string // which event was sent with a position
	epochs  map[uint64]bool
	keys    map[history.Key]channel.Position // what publishers were told of them
	next    int
}

// node is one router.
type node struct {
	*bench
	w      *world
	at     int // index of its view in truth
	dead   bool
	left   bool // dead in order: nothing was here
	source *source
	run    bool // is with the writer, or on its way back
	round  *round
	flown  []flown
}

// flown is a read that the store has answered, and whose answer is on its way.
type flown struct {
	query  *channel.ReadQuery
	result *channel.ReadResult
}

// round asks all others for the channel.
type round struct {
	revision uint64
	left     []string
	nothing  bool
}

type hand struct {
	from, to string
	h        *channel.Handed
	arrived  bool
	again    bool // comes a second time: the giver hears nothing of it
}

type pass struct {
	from, to string
	pubs     []*channel.Publication
}

// tracked is a publication with what has become of it.
type tracked struct {
	id       string
	at       *node
	p        *channel.Publication
	parent   *tracked
	result   *channel.Result
	released int
	gaveUp   bool
}

// asked is a question of an edge.
type asked struct {
	at      *node
	q       *channel.Question
	head    uint64 // of the store, or of memory, when it was asked
	replied int
}

// source gives runs to a writer.
type source struct {
	wake chan struct{}
	mu   sync.Mutex // guards below
	runs []*channel.Run
	done []*channel.Run
}

func (s *source) Wake() <-chan struct{} { return s.wake }

func (s *source) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs) > 0
}

func (s *source) Take(int, int64) []*channel.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	return runs
}

func (s *source) Written(runs []*channel.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, runs...)
}

func (s *source) written() []*channel.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// faultyStore does what it is told with the next calls.
type faultyStore struct {
	*memory.Store
	mu   sync.Mutex // guards below
	mode string
	late []history.Run // given up, and perhaps stored later
}

var errAway = errors.New("the store is away")

func (s *faultyStore) is(mode string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode == mode
}

func (s *faultyStore) set(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *faultyStore) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	if s.is("heads away") {
		return nil, errAway
	}
	return s.Store.Heads(ctx, q)
}

func (s *faultyStore) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	if s.is("reads away") {
		return nil, errAway
	}
	return s.Store.Read(ctx, r)
}

func (s *faultyStore) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	for _, r := range runs {
		for _, e := range r.Events {
			if strings.HasPrefix(string(e.Data), `"bad`) {
				return nil, &history.RefusedError{Err: errors.New("bad")}
			}
		}
	}
	switch {
	case s.is("not stored"):
		return nil, errAway
	case s.is("stored, not told"):
		_, err := s.Store.Append(ctx, runs)
		return nil, errors.Join(errAway, err)
	case s.is("late"):
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range runs {
			r.Events = slices.Clone(r.Events)
			s.late = append(s.late, r)
		}
		return nil, errAway
	}
	return s.Store.Append(ctx, runs)
}

// land stores what was given up, if the fence lets it, or drops it.
func (s *faultyStore) land(ctx context.Context, stores bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.late {
		if stores {
			_, _ = s.Store.Append(ctx, []history.Run{r}) // refused: its key came first
		}
	}
	s.late = nil
}

// head is that of the row.
func (s *faultyStore) head(ctx context.Context) channel.Position {
	p, _ := s.page(ctx)
	return channel.Position{Epoch: p.Epoch, Offset: p.Head}
}

func (s *faultyStore) page(ctx context.Context) (history.Page, error) {
	pages, err := s.Store.Read(ctx, []history.Range{{Channel: name, Limit: 1 << 20}})
	if err != nil {
		return history.Page{}, err
	}
	return pages[0], nil
}

func newWorld(t *rapid.T, ctx context.Context, ns *namespace.Namespace, faults bool) *world {
	return &world{
		t: t, ctx: ctx, ns: ns, faults: faults, store: &faultyStore{Store: memory.New(memory.Default())}, serving: make(map[string]bool),
		nodes: make(map[string]*node), fanned: make(map[channel.Position]string), epochs: make(map[uint64]bool), keys: make(map[history.Key]channel.Position),
	}
}

func (w *world) add(id string) *node {
	n := &node{bench: newBench(id, channel.New(name, w.ns)), w: w, at: -1, source: &source{wake: make(chan struct{}, 1)}}
	n.step.Config.QueueBytes = 1 << 20
	n.fan, n.finish, n.drop = n.fans, n.finished, n.released
	n.pass = func(to string, pubs []*channel.Publication) { w.passes = append(w.passes, pass{id, to, pubs}) }
	log := slog.New(slog.DiscardHandler)
	wr := writer.New(writer.Config{
		Committers: 1, BatchEvents: 100, BatchBytes: 1 << 20, StoreTimeout: time.Second, RetryFor: 2 * time.Second, RetryWait: 1, Now: time.Now,
	}, w.store, n.source, n.views, renewal.New(w.store, log, nil), log)
	go func() { _ = wr.Run(w.ctx) }() // ends with the world
	w.nodes[id], w.serving[id] = n, true
	w.changed()
	return n
}

func (w *world) changed() {
	w.t.Logf("routers: %v", w.serving)
	w.truth = append(w.truth, routersOf(int64(16*(len(w.truth)+1)), w.serving))
}

func (w *world) live() []string {
	var ids []string
	for id, n := range w.nodes {
		if !n.dead {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// The effects of a router that the world is told of.

func (n *node) fans(e *gatewayv1.Envelope) {
	w := n.w
	w.epochs[e.Epoch] = true
	for _, ev := range e.Events {
		at := channel.Position{Epoch: e.Epoch, Offset: ev.Offset}
		if other := w.fanned[at]; other != "" && other != string(ev.Data) {
			w.t.Fatalf("%v is %s and %s", at, other, ev.Data)
		} else if other != "" && w.ns.Durability == namespace.None {
			w.t.Fatalf("%v was numbered twice, for %s", at, ev.Data)
		}
		w.fanned[at] = string(ev.Data)
		if w.ns.Durability == namespace.Committed && w.stored(ev.Offset) != string(ev.Data) {
			w.t.Fatalf("%s was sent with %v, and the store has %q there", ev.Data, at, w.stored(ev.Offset))
		}
	}
}

func (w *world) stored(offset uint64) string {
	page, err := w.store.page(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range page.Events {
		if e.Offset == offset {
			return string(e.Data)
		}
	}
	return ""
}

func (w *world) of(p *channel.Publication) *tracked {
	for _, t := range w.pubs {
		if t.p == p {
			return t
		}
	}
	w.t.Fatal("a publication that nobody made")
	return nil
}

func (n *node) released(p *channel.Publication) {
	t := n.w.of(p)
	if t.released++; t.released > 1 {
		n.w.t.Fatalf("the place of %s is given back %d times", t.id, t.released)
	}
}

func (n *node) finished(p *channel.Publication, r channel.Result) {
	n.released(p)
	n.w.ended(p, r)
}

// ended is the result of a publication, which has one.
func (w *world) ended(p *channel.Publication, r channel.Result) {
	t := w.of(p)
	w.t.Logf("%s ends: %s", t.id, resultOf(r))
	if t.result != nil {
		w.t.Fatalf("%s ends twice", t.id)
	}
	t.result = &r
	if r.Code == codes.OK {
		w.taken(t, r)
	}
	p.Finish(r)
	if t.parent != nil && !(t.at.dead && t.parent.result != nil) { // who is dead answers nobody
		w.ended(t.parent.p, r)
	}
}

// taken holds an ack against what was sent and stored.
func (w *world) taken(t *tracked, r channel.Result) {
	at := channel.Position{Epoch: r.Epoch, Offset: r.Offset}
	what := w.fanned[at]
	if w.ns.Durability == namespace.Committed {
		what = w.stored(r.Offset)
	}
	if what != t.id && !r.Repeat || r.Repeat && what == "" {
		w.t.Fatalf("%s is acked with %v, where %q is (repeat %v)", t.id, at, what, r.Repeat)
	}
	key := t.p.Key()
	if first, is := w.keys[key]; is && first != at && first.Epoch == at.Epoch {
		w.t.Fatalf("%s has key %s and is acked with %v, the first with %v", t.id, key.Key, at, first)
	}
	if key.Key != "" {
		w.keys[key] = at
	}
}

// The actions.

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

// step does one thing by chance.
func (w *world) step() {
	id := rapid.SampledFrom(w.live()).Draw(w.t, "router")
	n := w.nodes[id]
	switch what := rapid.IntRange(0, 29).Draw(w.t, "what"); {
	case what < 5:
		w.publish(n)
	case what < 9:
		w.take(n)
	case what < 11:
		w.write(n, rapid.SampledFrom(modes).Draw(w.t, "store"))
	case what < 13:
		w.written(n)
	case what < 15:
		w.ask(n)
	case what == 15:
		w.fly(n)
	case what == 16:
		w.read(n)
	case what == 17:
		w.giveUp()
	case what == 18:
		w.store.land(w.ctx, rapid.Bool().Draw(w.t, "lands"))
	case what == 19:
		w.tick(n)
	case what < 22:
		w.see(n)
	case what == 22:
		w.viewed(n)
	case what == 23:
		w.give(n)
	case what < 26 && len(w.hands) > 0:
		w.carry(rapid.IntRange(0, len(w.hands)-1).Draw(w.t, "hand"))
	case what == 26:
		w.seek(n)
		w.seek(n)
	case what == 27:
		w.passOn()
	case what == 28:
		w.cluster(n)
	case what == 29 && w.faults:
		w.fault(n)
	}
	w.check()
}

// cluster lets routers come and go in order.
func (w *world) cluster(n *node) {
	servers := 0
	for _, serves := range w.serving {
		if serves {
			servers++
		}
	}
	switch serves, is := w.serving[n.id]; {
	case w.next == 1: // a world of one router
	case len(w.serving) < 4 && rapid.Bool().Draw(w.t, "joins"):
		w.next++
		w.add(fmt.Sprint("r", w.next))
	case serves && servers > 1:
		w.serving[n.id] = false
		w.changed()
	case is && !serves && n.members.Snapshot() == w.truth[len(w.truth)-1] && !n.step.Look.Leaving():
		n.views.Depart()
		w.viewed(n)
	case is && !serves && servers > 0 && !w.bound(n):
		n.dead, n.left = true, true
		delete(w.serving, n.id)
		w.changed()
	}
}

// bound says that something keeps a router that leaves: it has the channel, or may yet be
// given it by one that has not seen that it leaves.
func (w *world) bound(n *node) bool {
	in := channel.Look(n.c)
	if in.Known || in.Own == "awaiting" || n.c.Busy() || n.run || len(n.flown)+len(n.reads) > 0 {
		return true
	}
	for _, h := range w.hands {
		if h.to == n.id || h.from == n.id {
			return true
		}
	}
	for _, p := range w.passes {
		if p.to == n.id || p.from == n.id {
			return true
		}
	}
	for _, o := range w.nodes {
		m := o.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: n.id})
		if !o.dead && (m == nil && o.at < len(w.truth)-1 || m != nil && m.State == gatewayv1.State_STATE_SERVING) {
			return true
		}
	}
	return false
}

func (w *world) fault(n *node) {
	switch rapid.IntRange(0, 3).Draw(w.t, "fault") {
	case 0:
		if left := maps.Clone(w.serving); !left[n.id] || len(left) > 1 {
			if delete(left, n.id); !slices.Contains(slices.Collect(maps.Values(left)), true) {
				return
			}
			w.t.Logf("%s is killed", n.id)
			n.dead = true
			delete(w.serving, n.id)
			w.changed()
			for _, t := range w.pubs {
				if t.at == n && t.parent != nil && t.result == nil && t.parent.result == nil {
					w.ended(t.parent.p, channel.UnknownOutcome)
				}
			}
		}
	case 1:
		sleep(time.Second) // waits end
	case 2:
		n.members.losses.Add(1)
	case 3:
		w.store.land(w.ctx, true)
		sleep(time.Minute) // what another router may believe ends
	}
}

// check holds every router against the invariants of a channel.
func (w *world) check() {
	for _, id := range w.live() {
		n := w.nodes[id]
		if err := channel.Check(n.c); err != nil {
			w.t.Fatalf("%s: %v", id, err)
		}
		in := channel.Look(n.c)
		if in.Live > 0 && !n.ready && channel.Idle(n.c) {
			w.t.Fatalf("%s: %d publications wait, and the channel is not ready", id, in.Live)
		}
		if (in.Own == "awaiting" || in.Moving || in.Held) && !n.watched {
			w.t.Fatalf("%s: %s, moving %v, held %v, and not watched", id, in.Own, in.Moving, in.Held)
		}
		look := n.views.Look(time.Now())
		if owner, _ := look.Owner(name); owner == id && n.c.Awaiting() && n.sought == 0 && n.round == nil {
			w.t.Fatalf("%s: awaiting, and nobody is asked", id)
		}
	}
}

// rest lets everything end: all see the last view, nothing fails any more.
func (w *world) rest() {
	w.t.Log("rest")
	w.faults = false
	w.store.land(w.ctx, true)
	for range 60 {
		for _, id := range w.live() {
			n := w.nodes[id]
			for n.at+1 < len(w.truth) {
				w.see(n)
			}
			w.viewed(n)
			w.take(n)
			w.write(n, "")
			w.written(n)
			w.fly(n)
			w.read(n)
			for range 4 {
				w.give(n)
				w.seek(n)
			}
			w.tick(n)
		}
		for len(w.hands) > 0 {
			w.carry(0)
		}
		for len(w.passes) > 0 {
			w.passOn()
		}
		w.check()
		sleep(100 * time.Millisecond)
	}
	for _, t := range w.pubs {
		if !t.at.dead && (t.released != 1 || t.result == nil) {
			w.t.Fatalf("%s at %s: released %d times, result %v", t.id, t.at.id, t.released, t.result)
		}
	}
	for _, a := range w.asks {
		if !a.at.dead && a.replied == 0 {
			w.t.Fatalf("a question at %s is not answered", a.at.id)
		}
	}
}

// once holds that nothing is stored, or sent, twice, nor what was said not to be.
func (w *world) once() {
	times := make(map[string]int)
	keys := make(map[string]bool)
	if w.ns.Durability == namespace.Committed {
		page, err := w.store.page(w.ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		for i, e := range page.Events {
			if e.Offset != uint64(i)+1 || e.Key != "" && keys[e.Key] {
				w.t.Fatalf("event %d has offset %d and key %q", i, e.Offset, e.Key)
			}
			keys[e.Key] = true
			times[string(e.Data)]++
		}
	} else {
		for _, id := range w.fanned {
			times[id]++
		}
	}
	for id, n := range times {
		if n > 1 {
			w.t.Errorf("%s is there %d times", id, n)
		}
	}
	for _, t := range w.pubs {
		if r := t.result; t.parent == nil && r != nil && r.Code != codes.OK && times[t.id] > 0 && !strings.Contains(r.Message, "unknown") {
			w.t.Errorf("%s is there, and its publisher was told: %s", t.id, resultOf(*r))
		}
	}
}

// inWorlds runs f in many worlds, by a clock that jumps.
func inWorlds(t *testing.T, d namespace.Durability, faults bool, f func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ testing.TB }{t}, func(t *rapid.T) { // a bubble has no deadline
			ctx, end := context.WithCancel(context.Background())
			defer synctest.Wait()
			defer end()
			w := newWorld(t, ctx, &namespace.Namespace{Durability: d, Recover: true}, faults)
			w.next = 1
			w.see(w.add("r1"))
			if rapid.Bool().Draw(t, "long since") {
				sleep(61 * time.Second) // nobody else can believe that it is the owner
			}
			f(w)
		})
	})
}
