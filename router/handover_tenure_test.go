package router

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Each row: a tenure, what is seen, and what follows.
func TestTenure(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const wait, grace = time.Second, 3 * time.Second
	mine := sight{self: "a", owner: "a", revision: 32, seq: 2, since: t0, known: true}
	others := sight{self: "a", owner: "b", revision: 48, seq: 3, since: t0, known: true}
	doubtful := mine
	doubtful.doubt = true
	nobody := sight{self: "a", seq: 1, since: t0}
	held := tenure{state: tenureHeld, seq: 2}
	handed := tenure{state: tenureHeld, seq: 2, to: "a", revision: 64} // by one who sees more
	given := tenure{state: tenureGiven, to: "c", revision: 64}
	awaiting := tenure{state: tenureAwaiting, until: t0.Add(wait)}
	for name, c := range map[string]struct {
		tenure tenure
		sight  sight
		after  time.Duration
		turn   turn
		state  tenureState
	}{
		"ours, nobody can have it":           {tenure{}, mine, 0, turnServe, tenureHeld},
		"ours, somebody may have it":         {tenure{}, doubtful, 0, turnWait, tenureAwaiting},
		"ours, still waiting":                {awaiting, doubtful, wait - 1, turnWait, tenureAwaiting},
		"ours, waited in vain":               {awaiting, doubtful, wait, turnServe, tenureHeld},
		"held":                               {held, mine, time.Hour, turnServe, tenureHeld},
		"held, but away meanwhile":           {held, doubtful, 0, turnWait, tenureAwaiting},
		"lost, nobody to give it to yet":     {held, others, grace - 1, turnServe, tenureLeaving},
		"lost for long":                      {held, others, grace, turnPass, tenureLeaving},
		"never ours":                         {tenure{}, others, 0, turnPass, tenureNone},
		"waiting, and then another's":        {awaiting, others, 0, turnPass, tenureNone},
		"handed by one who sees more":        {handed, others, time.Hour, turnServe, tenureHeld},
		"given to one who sees more":         {given, mine, 0, turnPass, tenureGiven},
		"given, and ours by a newer view":    {given, sight{self: "a", owner: "a", revision: 64, seq: 4}, 0, turnServe, tenureHeld},
		"no view yet":                        {tenure{}, nobody, 0, turnWait, tenureAwaiting},
		"no view, waited in vain":            {awaiting, nobody, wait, turnPass, tenureNone},
		"no router serves, but this held it": {held, nobody, time.Hour, turnServe, tenureHeld},
	} {
		got := c.tenure
		if turn := got.use(&c.sight, t0.Add(c.after), wait, grace); turn != c.turn || got.state != c.state {
			t.Errorf("%s: turn %d, %v; want %d, %v", name, turn, got.state, c.turn, c.state)
		}
	}
	for name, c := range map[string]struct {
		tenure   tenure
		from     string
		revision uint64
		want     asked
		other    string
	}{
		"held, the asker sees more":      {held, "b", 48, askedGive, ""},
		"held, the asker sees less":      {held, "b", 16, askedLater, ""},
		"held, the asker sees as much":   {held, "b", 32, askedLater, ""},
		"not here":                       {tenure{}, "b", 48, askedNothing, ""},
		"comes here, perhaps":            {awaiting, "b", 48, askedLater, ""},
		"given to another":               {given, "b", 80, askedElsewhere, "c"},
		"given to the asker":             {given, "c", 64, askedNothing, ""},
		"given by a view as new as that": {given, "b", 64, askedLater, ""},
	} {
		if got, other := c.tenure.ask(&mine, c.from, c.revision, false); got != c.want || other != c.other {
			t.Errorf("%s: %d %q, want %d %q", name, got, other, c.want, c.other)
		}
	}
}

// A hand that is late, or comes twice, brings nothing back.
func TestLateHandIsRefused(t *testing.T) {
	v := sight{self: "a", owner: "a", revision: 32, seq: 2}
	var n tenure
	if !n.accept(&v, 32, standing{epoch: 7, head: 5, moves: 1}, false) || n.state != tenureHeld {
		t.Fatal("the first was refused")
	}
	if got := n.give("b", 48, standing{epoch: 7, head: 9}, time.Now()); got.moves != 2 {
		t.Errorf("given with %d moves", got.moves)
	}
	for _, p := range []standing{{epoch: 7, head: 5, moves: 1}, {epoch: 7, head: 9, moves: 2}, {epoch: 6, head: 100, moves: 9}} {
		if n.accept(&v, 64, p, false) {
			t.Errorf("%+v was taken", p)
		}
	}
	back := standing{epoch: 7, head: 9, moves: 3}
	if n.accept(&v, 80, back, true) {
		t.Error("taken over what is here")
	}
	if !n.accept(&v, 64, back, false) {
		t.Error("what came back was refused")
	}
	stored := tenure{floor: standing{epoch: 7, head: 9, moves: 5, stored: true}}
	if stored.accept(&v, 64, standing{epoch: 7, head: 8, moves: 9, stored: true}, false) {
		t.Error("an older position of a stored channel was taken")
	}
	if !stored.accept(&v, 64, standing{epoch: 7, head: 9, moves: 1, stored: true}, false) {
		t.Error("a stored channel was refused by its count of moves")
	}
}

// tenureWorld is routers with one channel, each with its own view of them, and hands
// and questions under way.
type tenureWorld struct {
	t       *rapid.T
	now     time.Time
	truth   []*presence.Snapshot // all views, oldest first
	serving map[string]bool
	nodes   map[string]*tenureNode
	hands   []tenureHand
	numbers map[[2]uint64]string // who numbered (epoch, offset)
	epochs  map[uint64]bool
	faults  bool
}

type tenureNode struct {
	own    *ownership
	view   *rapidMembers
	at     int // index of its view in truth
	dead   bool
	tenure tenure

	known       bool
	epoch, head uint64
	asked       map[string]bool // candidates that have nothing
}

type tenureHand struct {
	from, to string
	revision uint64
	standing
}

// rapidMembers is a view that the world sets.
type rapidMembers struct {
	fakeMembers
}

func (w *tenureWorld) add(id string) {
	cfg := testConfig(id)
	n := &tenureNode{view: &rapidMembers{fakeMembers{snapshot: presence.NewSnapshot(nil, 0), changed: make(chan struct{})}}}
	n.own = newOwnership(&cfg, n.view)
	n.at = -1
	w.nodes[id] = n
	w.serving[id] = true
	w.changed()
}

func (w *tenureWorld) changed() {
	var members []*presence.Member
	for id, serving := range w.serving {
		state := gatewayv1.State_STATE_DRAINING
		if serving {
			state = gatewayv1.State_STATE_SERVING
		}
		members = append(members, &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: state})
	}
	w.t.Logf("routers: %v", w.serving)
	w.truth = append(w.truth, presence.NewSnapshot(members, int64(16*(len(w.truth)+1))))
}

func (w *tenureWorld) live() []string {
	var ids []string
	for id, n := range w.nodes {
		if !n.dead {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (w *tenureWorld) see(n *tenureNode) {
	if n.at+1 < len(w.truth) {
		n.at++
		n.view.set(w.truth[n.at])
		n.own.current()
		n.asked = nil
	}
}

func (w *tenureWorld) look(n *tenureNode) sight {
	return n.own.look("chat:a", n.known, &n.tenure, w.now)
}

// publish numbers an event if it is the router's turn.
func (w *tenureWorld) publish(id string) turn {
	n := w.nodes[id]
	v := w.look(n)
	turn := n.tenure.use(&v, w.now, time.Second, 3*time.Second)
	w.t.Logf("%s publishes: turn %d, %v, owner %s at %d", id, turn, n.tenure.state, v.owner, v.revision)
	if turn != turnServe {
		return turn
	}
	if !n.known {
		epoch := max(v.revision<<epochShift|1, n.epoch+1, n.tenure.floor.epoch+1)
		n.known, n.epoch, n.head = true, epoch, 0
		w.epochs[epoch] = true
	}
	n.head++
	at := [2]uint64{n.epoch, n.head}
	if other := w.numbers[at]; other != "" {
		w.t.Fatalf("%v was numbered by %s and by %s", at, other, id)
	}
	w.numbers[at] = id
	return turn
}

// offer hands the channel on if another owns it.
func (w *tenureWorld) offer(id string) {
	n := w.nodes[id]
	v := w.look(n)
	if to := n.tenure.due(&v); to != "" && n.known {
		w.give(id, to, v.revision)
	}
}

func (w *tenureWorld) give(from, to string, revision uint64) {
	n := w.nodes[from]
	w.t.Logf("%s gives (%d, %d) to %s at %d", from, n.epoch, n.head, to, revision)
	p := n.tenure.give(to, revision, standing{epoch: n.epoch, head: n.head}, w.now)
	w.hands = append(w.hands, tenureHand{from, to, revision, p})
	n.known = false
}

// ask lets a router that waits ask one that may have the channel.
func (w *tenureWorld) ask(id string) {
	n := w.nodes[id]
	if n.tenure.state != tenureAwaiting {
		return
	}
	if v := w.look(n); n.tenure.owner(&v) != id {
		return
	}
	if slices.ContainsFunc(w.hands, func(h tenureHand) bool { return h.from == id }) {
		n.asked = nil
		return // its own hand was not answered yet
	}
	if n.asked == nil {
		n.asked = make(map[string]bool)
	}
	v := w.look(n)
	for _, m := range candidates(n.view.Snapshot(), id, "chat:a") {
		if n.asked[m.Id] {
			continue
		}
		if done := w.follow(n, id, m.Id, v.revision); !done {
			return // given, or to be asked again
		}
		n.asked[m.Id] = true
	}
	w.t.Logf("nobody has anything for %s", id)
	n.tenure.settle(&v)
}

// follow asks one router, and those that it names; true: none of them has it.
func (w *tenureWorld) follow(n *tenureNode, id, other string, revision uint64) bool {
	for range takeChain {
		o := w.nodes[other]
		if o == nil || o.dead {
			return n.view.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: other}) == nil
		}
		v := w.look(o)
		moving := slices.ContainsFunc(w.hands, func(h tenureHand) bool { return h.from == other })
		answer, named := o.tenure.ask(&v, id, revision, moving)
		w.t.Logf("%s asks %s: %d %s", id, other, answer, named)
		switch answer {
		case askedGive:
			w.give(other, id, max(revision, v.revision))
			return false
		case askedLater:
			return false
		case askedNothing:
			return true
		}
		if other = named; named == id {
			return true
		}
	}
	return true
}

func (w *tenureWorld) deliver(i int) {
	h := w.hands[i]
	w.hands = slices.Delete(w.hands, i, i+1)
	n := w.nodes[h.to]
	if n == nil || n.dead {
		return
	}
	v := w.look(n)
	have := n.known && (n.epoch > h.epoch || n.epoch == h.epoch && n.head >= h.head)
	w.t.Logf("%s is handed (%d, %d), has (%d, %d) %v", h.to, h.epoch, h.head, n.epoch, n.head, n.known)
	if n.tenure.accept(&v, h.revision, h.standing, have) {
		n.known, n.epoch, n.head = true, h.epoch, h.head
	}
}

// step does one thing by chance.
func (w *tenureWorld) step(next *int) {
	live := w.live()
	id := rapid.SampledFrom(live).Draw(w.t, "router")
	n := w.nodes[id]
	switch what := rapid.IntRange(0, 19).Draw(w.t, "what"); {
	case what < 6:
		w.publish(id)
	case what < 9:
		w.see(n)
	case what < 11:
		w.offer(id)
	case what < 14:
		w.ask(id)
	case what < 16 && len(w.hands) > 0:
		i := rapid.IntRange(0, len(w.hands)-1).Draw(w.t, "hand")
		if w.faults && rapid.IntRange(0, 5).Draw(w.t, "twice") == 0 {
			w.hands = append(w.hands, w.hands[i])
		}
		w.deliver(i)
	case what == 16 && len(w.serving) < 5:
		*next++
		w.add(fmt.Sprint("r", *next))
	case what == 17 && w.servers() > 1 && w.serving[id]:
		w.serving[id] = false // leaves in order
		w.changed()
	case what == 18 && !w.serving[id] && !n.known && n.tenure.state != tenureAwaiting && !w.bound(id):
		n.dead = true // has left
		delete(w.serving, id)
		w.changed()
	case what == 19 && w.faults:
		w.fault(id)
	}
}

func (w *tenureWorld) servers() int {
	n := 0
	for _, serving := range w.serving {
		if serving {
			n++
		}
	}
	return n
}

// bound says that a hand is on its way to a router, or that it may yet be given one: it
// stays as long as others have not seen that it leaves.
func (w *tenureWorld) bound(id string) bool {
	for _, h := range w.hands {
		if h.to == id || h.from == id {
			return true
		}
	}
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		s := n.view.Snapshot()
		if m := s.Member(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: id}); m == nil || m.State == gatewayv1.State_STATE_SERVING {
			return true
		}
	}
	return false
}

func (w *tenureWorld) fault(id string) {
	switch rapid.IntRange(0, 3).Draw(w.t, "fault") {
	case 0:
		if len(w.live()) > 1 && w.servers() > 1 {
			w.nodes[id].dead = true // killed
			delete(w.serving, id)
			w.changed()
		}
	case 1:
		if len(w.hands) > 0 {
			w.hands = w.hands[1:] // lost
		}
	case 2:
		w.now = w.now.Add(time.Second) // waits end
	case 3:
		w.nodes[id].own.pauses.Add(1)
	}
}

func newTenureWorld(t *rapid.T, faults bool) *tenureWorld {
	return &tenureWorld{
		t: t, now: time.Now(), faults: faults, serving: make(map[string]bool), nodes: make(map[string]*tenureNode),
		numbers: make(map[[2]uint64]string), epochs: make(map[uint64]bool),
	}
}

// Whatever is killed, lost, doubled or late: no offset of an epoch is given twice.
func TestNoOffsetIsGivenTwiceWhateverFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTenureWorld(t, true)
		next := 1
		w.add("r1")
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			w.step(&next)
		}
	})
}

// Routers that join and leave in order, in any number and whatever they have seen
// of each other, keep a channel in its epoch.
func TestOrderlyChangesKeepTheEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTenureWorld(t, false)
		next := 1
		w.add("r1")
		w.see(w.nodes["r1"])
		w.publish("r1")
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			w.step(&next)
		}
		w.rest()
		if len(w.epochs) != 1 {
			t.Fatalf("%d epochs", len(w.epochs))
		}
		for i := range len(w.numbers) {
			for epoch := range w.epochs {
				if w.numbers[[2]uint64{epoch, uint64(i + 1)}] == "" {
					t.Fatalf("offset %d of %d is missing", i+1, len(w.numbers))
				}
			}
		}
	})
}

// rest lets everything settle: every router sees the last view, and the owner serves.
func (w *tenureWorld) rest() {
	for range 100 {
		for _, id := range w.live() {
			w.see(w.nodes[id])
			w.offer(id)
			w.ask(id)
			for len(w.hands) > 0 {
				w.deliver(0)
			}
		}
		owner := w.truth[len(w.truth)-1].Owner("chat:a")
		if w.publish(owner.Id) == turnServe && w.nodes[owner.Id].at == len(w.truth)-1 {
			return
		}
	}
	w.t.Fatal("the owner never serves")
}
