package machine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// cluster is an honest cluster for one channel: what was published, how much of it
// history still has, and connections whose frames arrive when the test says so, in
// order, until they are cut.
type cluster struct {
	t       *rapid.T
	m       *Machine
	sub     *Subscription
	now     time.Time
	world   string
	epoch   int    // of the channel
	head    uint64 // of the epoch
	kept    uint64 // events after it are in history
	wires   map[int]*wireLink
	newest  int
	reached Position // by the application
	seen    map[Position]int
	gaps    int
	moves   int
}

// What the cluster is like.
const (
	lossless = "history keeps everything"
	forgets  = "history forgets, and epochs end"
	calm     = "there is no history, and no connection is cut"
)

// wireLink is one connection with the frames under way on it.
type wireLink struct {
	n        int
	open     bool
	asked    bool // connect was sent
	up       bool // connected is under way, or was read
	pending  bool // the verdict is not given yet
	from     Position
	epoch    int
	last     uint64 // what the edge has sent, or announced as lost, in epoch
	underWay []*clientv1.ServerFrame
}

func (w *wireLink) send(f *clientv1.ServerFrame) { w.underWay = append(w.underWay, f) }

func (c *cluster) name(epoch int) string { return fmt.Sprint("e", epoch) }

// untilQuiet carries out what the machine wants, and checks what the application hears.
func (c *cluster) untilQuiet() {
	for i := 0; i < 100; i++ {
		for _, a := range c.m.Take() {
			c.action(a)
		}
		at := c.m.Wake()
		if at.IsZero() || at.After(c.now) {
			return
		}
		c.m.Tick(c.now, false)
	}
	c.t.Fatal("the machine spins")
}

func (c *cluster) action(a Action) {
	switch a := a.(type) {
	case OpenLink:
		c.newest = a.Link
		c.wires[a.Link] = &wireLink{n: a.Link}
	case DropLink:
		delete(c.wires, a.Link)
	case Send:
		f, problem := wire.DecodeClient(a.Text)
		if problem != nil {
			c.t.Fatal(problem)
		}
		if f.GetPing() != nil { // connect is looked at when it is due: see welcome
			c.wires[a.Link].send(&clientv1.ServerFrame{Id: f.Id, Frame: &clientv1.ServerFrame_Pong{Pong: &clientv1.Pong{}}})
		}
	case TellSubscribed:
		if !a.Pending && c.reached != a.Position && c.reached != (Position{}) {
			c.t.Fatalf("subscribed at %v, the application is at %v", a.Position, c.reached)
		} else if !a.Pending {
			c.reached = a.Position
		}
	case TellEvent:
		if a.Epoch != c.reached.Epoch || a.Offset != c.reached.Offset+1 {
			c.t.Fatalf("event %v follows %v", a.Position, c.reached)
		}
		if c.seen[a.Position]++; c.seen[a.Position] > 1 {
			c.t.Fatalf("event %v twice", a.Position)
		}
		c.reached = a.Position
	case TellGap:
		if a.From != c.reached {
			c.t.Fatalf("a gap from %v, the application is at %v", a.From, c.reached)
		}
		if a.Epoch == a.From.Epoch && a.Offset <= a.From.Offset {
			c.t.Fatalf("a gap from %v to %v", a.From, a.Position)
		}
		c.gaps++
		c.reached = a.Position
	case TellMove:
		if a.Err == nil {
			c.moves++
		}
	}
}

// welcome answers the connect of a link that asked from its position.
func (c *cluster) welcome(w *wireLink) {
	w.up = true
	e := &clientv1.SubscriptionEntry{Channel: "a"}
	node := fmt.Sprint("n", w.n)
	if c.m.link != nil && c.m.link.phase == up && rapid.IntRange(0, 3).Draw(c.t, "node") == 0 {
		node = c.m.link.node
	}
	f := &clientv1.Connected{Node: node, Session: "s", Resumed: true, Subscriptions: []*clientv1.SubscriptionEntry{e}}
	later := []*clientv1.ServerFrame{}
	if c.world != calm && rapid.Bool().Draw(c.t, "pending") {
		e.Pending, w.pending = true, true
	} else {
		later = c.verdict(w, e)
	}
	w.send(&clientv1.ServerFrame{Id: c.m.find(w.n).connectID, Frame: &clientv1.ServerFrame_Connected{Connected: f}})
	w.underWay = append(w.underWay, later...)
}

// verdict says where a link joins, and what it has missed.
func (c *cluster) verdict(w *wireLink, e *clientv1.SubscriptionEntry) (missed []*clientv1.ServerFrame) {
	w.epoch, w.last, w.pending = c.epoch, c.head, false
	e.Pending, e.Epoch, e.Offset = false, c.name(c.epoch), c.head
	if c.world != calm && w.from.Epoch == e.Epoch && w.from.Offset >= c.kept && w.from.Offset <= c.head {
		e.Recovered = true
		for o := w.from.Offset + 1; o <= c.head; o++ {
			missed = append(missed, c.event(o))
		}
	}
	return missed
}

func (c *cluster) event(offset uint64) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{Channel: "a", Offset: offset, Data: []byte("1")}}}
}

// deliver sends what was published to every link that has joined; one that lags may
// be told that history does not have it any more.
func (c *cluster) deliver(w *wireLink) {
	if !w.up || w.pending || w.epoch == 0 {
		return
	}
	if w.epoch != c.epoch || w.last < c.kept {
		w.epoch, w.last = c.epoch, c.kept
		w.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Gap{Gap: &clientv1.Gap{Channel: "a", Epoch: c.name(c.epoch), Offset: c.kept}}})
	}
	for w.last < c.head {
		w.last++
		w.send(c.event(w.last))
	}
}

// arrive lets the first frames under way arrive.
func (c *cluster) arrive(w *wireLink, n int) {
	for ; n > 0 && len(w.underWay) > 0 && c.wires[w.n] == w; n-- {
		f := w.underWay[0]
		w.underWay = w.underWay[1:]
		c.m.Frame(c.now, w.n, f)
		c.untilQuiet()
	}
}

func (c *cluster) any() *wireLink {
	var list []*wireLink
	for n := range c.newest + 1 {
		if w := c.wires[n]; w != nil {
			list = append(list, w)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return rapid.SampledFrom(list).Draw(c.t, "link")
}

// open lets a handshake succeed; the connect that follows asks from the position.
func (c *cluster) open(w *wireLink) {
	if w == nil || w.open {
		return
	}
	w.open = true
	c.m.Opened(c.now, w.n)
	if c.wires[w.n] == w {
		w.from, w.asked = c.sub.position(), true
	}
	c.untilQuiet()
}

// The application sees each offset once, in order, and what it does not see is
// announced; whatever is moved, cut, delayed or lost on the way. If history has
// everything, or the old connection is there all the time, nothing is missed at all.
func TestMovesLoseAndDoubleNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.SampledFrom([]string{lossless, forgets, calm}).Draw(t, "world")
		c := &cluster{t: t, world: world, m: newMachine("ws://a.test/v1/ws"), now: time.Unix(1_764_470_000, 0), epoch: 1, wires: map[int]*wireLink{}, seen: map[Position]int{}}
		jitter := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		c.m.cfg.Random = func(d time.Duration) time.Duration { return time.Duration(jitter.Int64N(max(int64(d), 1))) }
		c.sub = &Subscription{channel: "a"}
		if err := c.m.Subscribe(c.now, c.sub); err != nil {
			t.Fatal(err)
		}
		c.m.Start(c.now)
		c.untilQuiet()
		act := func(step func()) func(*rapid.T) {
			return func(t *rapid.T) {
				c.t = t
				step()
				c.untilQuiet()
			}
		}
		publish := func() {
			c.head += rapid.Uint64Range(1, 3).Draw(c.t, "events")
			for n := range c.newest + 1 {
				if w := c.wires[n]; w != nil && (world == calm || rapid.IntRange(0, 3).Draw(c.t, "lags") > 0) {
					c.deliver(w)
				}
			}
		}
		steps := map[string]func(*rapid.T){
			"publish":  act(publish),
			"publish2": act(publish),
			"deliver": act(func() {
				if w := c.any(); w != nil {
					c.deliver(w)
				}
			}),
			"arrive": act(func() {
				if w := c.any(); w != nil {
					c.arrive(w, rapid.IntRange(1, 5).Draw(c.t, "frames"))
				}
			}),
			"open": act(func() { c.open(c.any()) }),
			"welcome": act(func() {
				if w := c.any(); w != nil && w.asked && !w.up {
					c.welcome(w)
				}
			}),
			"verdict": act(func() {
				if w := c.any(); w != nil && w.up && w.pending {
					e := &clientv1.SubscriptionEntry{Channel: "a"}
					missed := c.verdict(w, e)
					w.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{Subscriptions: []*clientv1.SubscriptionEntry{e}}}})
					w.underWay = append(w.underWay, missed...)
				}
			}),
			"move": act(func() {
				c.up()
				w := c.wires[c.serving()]
				if w == nil {
					return
				}
				w.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{AfterMs: 0, DeadlineMs: 20_000, Ticket: "t"}}})
				c.arrive(w, len(w.underWay))
				c.up()
			}),
			"the newest is cut": act(func() {
				if w := c.wires[c.newest]; w != nil {
					c.cut(w)
				}
			}),
			"reconnect": act(func() {
				if w := c.any(); w != nil && w.up {
					w.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Reconnect{Reconnect: &clientv1.Reconnect{AfterMs: 10, DeadlineMs: 20_000, Ticket: "t"}}})
				}
			}),
			"busy": act(func() {
				if w := c.any(); w != nil && w.open && !w.up {
					c.m.Frame(c.now, w.n, &clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Busy{Busy: &clientv1.Busy{RetryAfterMs: 500}}})
					delete(c.wires, w.n)
					c.m.Lost(c.now, w.n, 4010, nil)
				}
			}),
			"cut": act(func() {
				if w := c.any(); w != nil {
					c.cut(w)
				}
			}),
			"time": act(func() {
				for n := range c.newest + 1 {
					if w := c.wires[n]; w != nil && world == calm {
						c.arrive(w, len(w.underWay))
					}
				}
				at := c.m.Wake()
				if at.After(c.now) && rapid.Bool().Draw(c.t, "until due") {
					c.now = at
				} else {
					c.now = c.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(c.t, "ms")) * time.Millisecond)
				}
				c.m.Tick(c.now, false)
			}),
		}
		if world == calm {
			delete(steps, "cut")
			delete(steps, "the newest is cut")
		}
		if world == forgets {
			steps["forget"] = act(func() { c.kept = rapid.Uint64Range(c.kept, c.head).Draw(c.t, "kept") })
			steps["epoch"] = act(func() { c.epoch, c.head, c.kept = c.epoch+1, 0, 0 })
		}
		t.Repeat(steps)
		if world != forgets && c.gaps > 0 {
			t.Fatalf("a gap, although %s", world)
		}
		c.t = t
		c.quiet()
	})
}

// up brings the newest attempt to connected, if there is one.
func (c *cluster) up() {
	if c.m.link == nil {
		c.now = c.m.Wake()
		c.m.Tick(c.now, false)
		c.untilQuiet()
	}
	w := c.wires[c.newest]
	c.open(w)
	if w != nil && w.asked && !w.up {
		c.welcome(w)
		c.arrive(w, 1)
	}
}

// serving is the link that the client has chosen.
func (c *cluster) serving() int {
	if c.m.link == nil {
		return 0
	}
	return c.m.link.n
}

func (c *cluster) cut(w *wireLink) {
	delete(c.wires, w.n)
	if w.open {
		c.m.Lost(c.now, w.n, 0, errors.New("reset"))
	} else {
		c.m.Refused(c.now, w.n, Refusal{Err: errors.New("refused")})
	}
}

// quiet lets everything arrive: then the application is at the head.
func (c *cluster) quiet() {
	for range 200 {
		for n := range c.newest + 1 {
			w := c.wires[n]
			if w == nil {
				continue
			}
			c.open(w)
			if w.asked && !w.up {
				c.welcome(w)
			}
			if w.up && w.pending {
				e := &clientv1.SubscriptionEntry{Channel: "a"}
				missed := c.verdict(w, e)
				w.send(&clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Subscribed{Subscribed: &clientv1.Subscribed{Subscriptions: []*clientv1.SubscriptionEntry{e}}}})
				w.underWay = append(w.underWay, missed...)
			}
			c.deliver(w)
			c.arrive(w, len(w.underWay))
		}
		c.now = c.now.Add(500 * time.Millisecond)
		c.m.Tick(c.now, false)
		c.untilQuiet()
		if c.m.state == Connected && c.m.old == nil && c.m.ahead == nil && c.reached == (Position{c.name(c.epoch), c.head}) {
			return
		}
	}
	c.t.Fatalf("the application is at %v, the channel at %d:%d; %v", c.reached, c.epoch, c.head, c.m.state)
}
