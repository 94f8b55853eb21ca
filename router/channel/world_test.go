package channel_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
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
