package router

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
)

// crew is routers over one store whose views a test sets, each for itself if it must be.
type crew struct {
	t        *testing.T
	shared   *memory.Store
	nodes    map[string]*node
	states   map[string]gatewayv1.State
	revision int64
	config   func(*Config)     // of routers that are started; may be nil
	strange  map[string]string // addresses of routers that a test plays
}

func newCrew(t *testing.T, ids ...string) *crew { return newCrewWith(t, nil, ids...) }

func newCrewWith(t *testing.T, config func(*Config), ids ...string) *crew {
	c := &crew{
		t: t, shared: memory.New(memory.Default()), nodes: make(map[string]*node), states: make(map[string]gatewayv1.State),
		config: config, strange: make(map[string]string),
	}
	for _, id := range ids {
		c.start(id)
		c.states[id] = gatewayv1.State_STATE_SERVING
	}
	c.show(ids...)
	return c
}

// recheck is short where a test counts reads: for so long after its first view a router
// reads heads again, whatever it knows.
const recheck = 2 * time.Second

// newSeasonedCrew is a crew whose routers have trusted their memory for a while.
func newSeasonedCrew(t *testing.T, ids ...string) *crew {
	c := newCrewWith(t, func(cfg *Config) { cfg.OwnerRecheck = recheck }, ids...)
	pause(testContext(t), recheck)
	return c
}

// start makes a router that nobody has seen yet, and that has seen nobody.
func (c *crew) start(id string) *node {
	n := startWith(c.t, c.shared, func(cfg *Config) {
		cfg.ID = id
		cfg.OwnerRecheck = time.Minute
		cfg.HandoverTimeout, cfg.API.PublishDeadline = 15*time.Second, 15*time.Second // of a busy machine
		if c.config != nil {
			c.config(cfg)
		}
	}, func(d *Deps) { d.Members.(*fakeMembers).set(presence.NewSnapshot(nil, 0)) })
	c.nodes[id] = n
	return n
}

// pause waits, at the latest until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// has counts the channels of which a router knows the position.
func (n *node) has(names []string) (known int) {
	for _, name := range names {
		if n.state(name).Known {
			known++
		}
	}
	return known
}

func (c *crew) snapshot() *presence.Snapshot {
	c.revision += 16
	var members []*presence.Member
	for id, state := range c.states {
		address := c.strange[id]
		if address == "" {
			address = c.nodes[id].Addr()
		}
		m := routerMember(id, address)
		m.State = state
		members = append(members, m)
	}
	return presence.NewSnapshot(members, c.revision)
}

// show lets routers see what there is now.
func (c *crew) show(ids ...string) {
	s := c.snapshot()
	for _, id := range ids {
		c.nodes[id].members.set(s)
	}
}

func (c *crew) set(id string, state gatewayv1.State) { c.states[id] = state }

// channels of a namespace, many enough that every router owns some.
func crewChannels(namespace string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s:%d", namespace, i)
	}
	return names
}

// publishAll puts one event on each channel through one router and returns the places.
func (c *crew) publishAll(through string, names []string, key string) map[string]*routerv1.Placed {
	c.t.Helper()
	in := make([]*routerv1.Publication, len(names))
	for i, name := range names {
		in[i] = event(name, `1`, key)
	}
	r, err := c.nodes[through].pub.PublishBatch(testContext(c.t), &routerv1.PublishBatchRequest{Publications: in})
	if err != nil {
		c.t.Fatal(err)
	}
	placed := make(map[string]*routerv1.Placed)
	for i, res := range r.Results {
		if res.GetPlaced() == nil {
			c.t.Fatalf("%s through %s: %v", names[i], through, res.GetFailure())
		}
		placed[names[i]] = res.GetPlaced()
	}
	return placed
}

// wantNext says that every channel went on in its epoch.
func wantNext(t *testing.T, what string, before, after map[string]*routerv1.Placed) {
	t.Helper()
	wrong := 0
	for name, b := range before {
		if a := after[name]; a.Epoch != b.Epoch || a.Offset != b.Offset+1 {
			if wrong++; wrong < 5 {
				t.Errorf("%s: %s is at %s %d after %s %d", what, name, a.Epoch, a.Offset, b.Epoch, b.Offset)
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%s: %d of %d channels did not go on", what, wrong, len(before))
	}
}

// leave lets a router leave in order, as Run does, while the others look on.
func (c *crew) leave(id string, stay ...string) {
	c.set(id, gatewayv1.State_STATE_DRAINING)
	c.show(append(stay, id)...)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	c.nodes[id].handover.Leave(ctx)
}

// Routers join and leave in order: channels keep epoch, offsets, keys and tails, and the
// store is not read for it.
func TestChannelsAreHandedOnJoinAndLeave(t *testing.T) {
	c := newSeasonedCrew(t, "r1", "r2")
	names := append(crewChannels("brief", 150), crewChannels("chat", 150)...)
	first := c.publishAll("r1", names, "k1")
	second := c.publishAll("r2", names, "")
	wantNext(t, "two routers", first, second)

	n := c.start("r3")
	c.set("r3", gatewayv1.State_STATE_SERVING)
	reads := c.storeReads()
	c.show("r1", "r2", "r3")
	third := c.publishAll("r1", names, "")
	wantNext(t, "after a join", second, third)
	c.leave("r1", "r2", "r3")
	fourth := c.publishAll("r2", names, "")
	wantNext(t, "after a leave", third, fourth)

	// Keys went along, and so did tails: all can be recovered from the start.
	for name, repeat := range c.publishAll("r3", crewChannels("brief", 150), "k1") {
		if !repeat.Repeat || repeat.Offset != first[name].Offset || repeat.Epoch != first[name].Epoch {
			t.Fatalf("%s: the key was forgotten: %v", name, repeat)
		}
	}
	for _, name := range names {
		owner := c.nodes[n.views.Owner(name).Id]
		e := owner.sync()
		head := e.ask(&gatewayv1.Ask{Channel: name})
		a := e.ask(position(name, head.Epoch, 0))
		if !a.Recovered || offsetsOf(a.Events) != "[1 2 3 4]" {
			t.Fatalf("%s at %s: %v", name, owner.cfg.ID, a)
		}
	}
	if got := c.storeReads(); got != reads {
		t.Errorf("%d reads of the store", got-reads)
	}
}

func (c *crew) storeReads() int {
	n := 0
	for _, node := range c.nodes {
		_, heads, reads := node.store.counts()
		n += heads + reads
	}
	return n
}

// While routers join and leave publishers go on: nothing is refused, and of one
// publisher the order holds.
func TestPublishersGoOnWhileRoutersChange(t *testing.T) {
	c := newCrew(t, "r1", "r2")
	names := append(crewChannels("brief", 30), crewChannels("chat", 30)...)
	last := c.publishAll("r1", names, "")
	ctx, stop := context.WithCancel(context.Background())
	var publishers sync.WaitGroup
	var mu sync.Mutex
	longest := time.Duration(0)
	// Each ends with ctx; the test waits for them.
	for _, through := range []string{"r1", "r2"} {
		for _, name := range names[map[string]int{"r1": 0, "r2": 1}[through]:] {
			if len(name)%2 == 0 != (through == "r1") {
				continue
			}
			pub := c.nodes[through].pub
			publishers.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					began := time.Now()
					r, err := pub.Publish(testContext(t), &routerv1.PublishRequest{Publication: event(name, fmt.Sprint(i), "")})
					took := time.Since(began)
					mu.Lock()
					longest = max(longest, took)
					before := last[name]
					switch {
					case err != nil:
						t.Errorf("%s: %v", name, err)
					case r.Placed.Epoch != before.Epoch || r.Placed.Offset != before.Offset+1:
						t.Errorf("%s: %v after %v", name, r.Placed, before)
					default:
						last[name] = r.Placed
					}
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
	}
	for round := range 3 {
		id := fmt.Sprint("extra", round)
		c.start(id)
		c.set(id, gatewayv1.State_STATE_SERVING)
		c.show("r2", id) // r1 lags
		pause(ctx, 50*time.Millisecond)
		c.show("r1", "r2", id)
		pause(ctx, 100*time.Millisecond)
		c.leave(id, "r1") // r2 lags
		pause(ctx, 50*time.Millisecond)
		c.show("r1", "r2", id)
		delete(c.states, id)
		c.show("r1", "r2")
	}
	stop()
	publishers.Wait()
	t.Logf("longest publish: %v", longest)
}

// A router that was given a channel and dies takes it along: a new epoch begins. One
// that is stored goes on.
func TestKilledReceiverBeginsANewEpoch(t *testing.T) {
	c := newCrew(t, "r1", "r2")
	names := append(crewChannels("brief", 20), crewChannels("chat", 20)...)
	first := c.publishAll("r1", names, "")
	c.leave("r2", "r1")
	second := c.publishAll("r1", names, "")
	wantNext(t, "after the leave", first, second)
	for _, name := range names { // as a kill does
		eventually(t, "it is let go", func() bool { return c.nodes["r1"].table.Let(name) })
	}
	for name, p := range c.publishAll("r1", names, "") {
		kept := p.Epoch == first[name].Epoch
		if stored := c.nodes["r1"].namespaces.Of(name).Durability != namespace.None; kept != stored {
			t.Errorf("%s: %v, before %v", name, p, second[name])
		}
	}
}

// What cannot be given is served on for its grace, then refused.
func TestChannelThatNobodyTakesIsServedForItsGrace(t *testing.T) {
	n := start(t, nil, func(c *Config) { c.HandoverGrace, c.HandoverWait = 300*time.Millisecond, 50*time.Millisecond })
	n.publish1("brief:a", `1`, "")
	n.giveAway()
	e := n.sync()
	if a := e.ask(&gatewayv1.Ask{Channel: "brief:a"}); a.Status != gatewayv1.Status_STATUS_OK || a.Head != 1 {
		t.Errorf("within the grace: %v", a)
	}
	eventually(t, "it is refused", func() bool {
		_, err := n.publishErr("brief:a", `2`, "")
		return status.Code(err) == codes.Unavailable && e.ask(&gatewayv1.Ask{Channel: "brief:a"}).Status == gatewayv1.Status_STATUS_UNAVAILABLE
	})
}

// All edges ask for the heads of channels whose owner changed: ten thousand of them cost
// the new owner no look at the store.
func TestAsksAfterARestartReadNothing(t *testing.T) {
	c := newSeasonedCrew(t, "r1", "r2")
	names := crewChannels("chat", 10_000)
	for from := 0; from < len(names); from += 1000 {
		c.publishAll("r1", names[from:from+1000], "")
	}
	moving := 0
	for _, name := range names {
		if c.nodes["r1"].views.Owned(name) {
			moving++
		}
	}
	reads, began := c.storeReads(), time.Now()
	c.leave("r1", "r2")
	handed := time.Since(began)
	e := c.nodes["r2"].sync()
	asks := make([]*gatewayv1.Ask, len(names))
	for i, name := range names {
		asks[i] = &gatewayv1.Ask{Channel: name}
	}
	for _, a := range e.askAll(asks...) {
		if a.Status != gatewayv1.Status_STATUS_OK || a.Head != 1 {
			t.Fatalf("answered %v", a)
		}
	}
	if got := c.storeReads() - reads; got != 0 {
		t.Errorf("%d reads of the store", got)
	}
	t.Logf("%d channels handed in %v, %d asks answered within %v", moving, handed.Round(time.Millisecond), len(asks), (time.Since(began) - handed).Round(time.Millisecond))
}
