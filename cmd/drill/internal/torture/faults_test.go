package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/torture/busproxy"
	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	"github.com/spillway-io/spillway/router/history"
)

// fault does something bad, waits, and mends it before it returns.
type fault struct {
	name string
	do   func(tr *trial, rng *rand.Rand)
	// needs: a trial without it cannot have the fault.
	needs func(tr *trial) bool
	long  bool // with -long only
}

func withStore(tr *trial) bool    { return tr.store != nil }
func severalOf(tr *trial) bool    { return tr.members > 1 }
func withStranger(tr *trial) bool { return len(tr.routers) > tr.members }

// faults are all kinds.
var faults = []fault{
	{name: "a router is killed", do: (*trial).killRouter},
	{name: "the stranger is killed", do: (*trial).killStranger, needs: withStranger},
	{name: "an edge is killed", do: (*trial).killEdge},
	{name: "a router stops in order", do: (*trial).stopRouter},
	{name: "an edge stops in order, and its clients move", do: (*trial).stopEdge},
	{name: "the bus is cut for a node", do: (*trial).cutBus},
	{name: "the bus loses, doubles and reorders", do: (*trial).badWeather},
	{name: "the store is stopped", do: (*trial).stopStore, needs: withStore},
	{name: "retention empties channels that are then published on", do: (*trial).retain, needs: withStore},
	{name: "a channel is born", do: (*trial).birth},
	{name: "an owner stands still", do: (*trial).pauseOwner},
	{name: "an owner stands still for longer than its lease", do: (*trial).pauseBeyondLease, needs: severalOf},
	{name: "a router is alone, and others take its channels", do: (*trial).isolate, needs: severalOf},
	{name: "a node does not reach etcd", do: (*trial).cutEtcd},
	{name: "all routers are killed", do: (*trial).killRouters, long: true},
	{name: "bus and membership are killed", do: (*trial).killInfra, long: true},
}

// wait is a time between short and most; most is multiplied in long runs.
func (tr *trial) wait(rng *rand.Rand, most time.Duration) {
	if *long {
		most *= 5
	}
	tr.rest(most/5 + time.Duration(rng.Int64N(int64(most))))
}

func (tr *trial) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

func (tr *trial) must(what string, err error) {
	if err != nil {
		tr.t.Errorf("%s: %v", what, err)
	}
}

// killed kills a process, leaves it away for a while and starts it again.
func (tr *trial) killed(rng *rand.Rand, n *cluster.Node, most time.Duration) {
	defer tr.hold(n.ID)()
	tr.note("kill -9 %s", n.ID)
	tr.must("kill", n.Kill())
	tr.wait(rng, most)
	tr.note("%s starts again", n.ID)
	tr.must("restart", n.Start())
}

func (tr *trial) killRouter(rng *rand.Rand) {
	tr.killed(rng, tr.routers[rng.IntN(tr.members)].Node, 1500*time.Millisecond)
}

// stopped ends a process in order and starts it again.
func (tr *trial) stopped(rng *rand.Rand, n *cluster.Node) {
	defer tr.hold(n.ID)()
	tr.note("SIGTERM %s", n.ID)
	tr.must("stop", n.Stop(stopTime))
	tr.wait(rng, time.Second)
	tr.note("%s starts again", n.ID)
	tr.must("restart", n.Start())
}

// stopTime is more than a stop may take.
const stopTime = 40 * time.Second

func (tr *trial) stopRouter(rng *rand.Rand) { tr.stopped(rng, tr.routers[rng.IntN(tr.members)].Node) }

func (tr *trial) stopEdge(rng *rand.Rand) {
	edges := tr.c.Edges()
	tr.stopped(rng, edges[rng.IntN(len(edges))])
}

func (tr *trial) killStranger(rng *rand.Rand) {
	tr.killed(rng, tr.routers[tr.members].Node, time.Second)
}

func (tr *trial) killRouters(rng *rand.Rand) {
	for _, r := range tr.routers[:tr.members] {
		defer tr.hold(r.ID)()
	}
	for _, r := range tr.routers[:tr.members] {
		tr.note("kill -9 %s", r.ID)
		tr.must("kill", r.Kill())
	}
	tr.wait(rng, time.Second)
	for _, r := range tr.routers[:tr.members] {
		tr.note("%s starts again", r.ID)
		tr.must("restart", r.Start())
	}
}

func (tr *trial) killEdge(rng *rand.Rand) {
	edges := tr.c.Edges()
	tr.killed(rng, edges[rng.IntN(len(edges))], time.Second)
}

func (tr *trial) killInfra(rng *rand.Rand) {
	p := tr.c.Infra()[0]
	defer tr.hold(p.Name)()
	tr.note("kill -9 %s", p.Name)
	tr.must("kill", p.Kill())
	tr.wait(rng, 3*time.Second)
	tr.note("%s starts again", p.Name)
	tr.must("restart", p.Start())
}

// node draws a router or an edge.
func (tr *trial) node(rng *rand.Rand) *cluster.Node {
	all := append(tr.c.Routers(), tr.c.Edges()...)
	return all[rng.IntN(len(all))]
}

func (tr *trial) cutBus(rng *rand.Rand) {
	n := tr.node(rng)
	silent := rng.IntN(2) == 0
	defer tr.hold("bus of " + n.ID)()
	p := tr.proxy(tr.c, n.ID)
	tr.note("the bus is cut for %s, silently %v", n.ID, silent)
	p.Cut(silent)
	tr.wait(rng, 4*time.Second)
	p.Mend()
	tr.note("the bus is back for %s", n.ID)
}

func (tr *trial) cutEtcd(rng *rand.Rand) {
	n := tr.node(rng)
	defer tr.hold("etcd of " + n.ID)()
	p := tr.registry(tr.c, n.ID)
	tr.note("%s does not reach etcd", n.ID)
	p.Cut(rng.IntN(2) == 0)
	tr.wait(rng, 4*time.Second)
	p.Mend()
	tr.note("%s reaches etcd", n.ID)
}

// isolate cuts a router off from etcd and the bus, not from publishers, edges and the
// store, until the others have its channels: two believe that they own them.
func (tr *trial) isolate(rng *rand.Rand) {
	r := tr.routers[rng.IntN(tr.members)]
	defer tr.hold("etcd of " + r.ID)()
	defer tr.hold("bus of " + r.ID)()
	all := []*busproxy.Proxy{tr.registry(tr.c, r.ID), tr.proxy(tr.c, r.ID)}
	silent := rng.IntN(2) == 0
	tr.note("%s is alone, silently %v", r.ID, silent)
	for _, p := range all {
		p.Cut(silent)
	}
	tr.rest(lease + time.Duration(rng.Int64N(int64(3*time.Second))))
	tr.birth(rng) // channels that two own from their first event on
	tr.rest(time.Duration(rng.Int64N(int64(3 * time.Second))))
	for _, p := range all {
		p.Mend()
	}
	tr.note("%s is back among the others", r.ID)
}

// badWeather is at edges; nothing else that is touched matters to routers.
func (tr *trial) badWeather(rng *rand.Rand) {
	defer tr.hold("weather")()
	w := busproxy.Weather{Most: time.Duration(rng.Int64N(int64(400*time.Millisecond)) + 1)}
	switch rng.IntN(4) {
	case 0:
		w.Lose = 1 // the route between servers is cut, every process stays connected to its own
	case 1:
		w.Lose = 0.3 * rng.Float64()
		fallthrough
	default:
		w.Double, w.Late = 0.5*rng.Float64(), 0.5*rng.Float64()
	}
	tr.note("the bus loses %.2f, doubles %.2f, %.2f come up to %v late", w.Lose, w.Double, w.Late, w.Most)
	for _, e := range tr.c.Edges() {
		tr.proxy(tr.c, e.ID).Set(w)
	}
	tr.wait(rng, 4*time.Second)
	for _, e := range tr.c.Edges() {
		tr.proxy(tr.c, e.ID).Set(busproxy.Weather{})
	}
	tr.note("the bus is well")
}

func (tr *trial) stopStore(rng *rand.Rand) {
	defer tr.hold("store")()
	pg := tr.c.Store()
	if rng.IntN(2) == 0 {
		tr.note("the store is stopped")
		tr.must("stop", pg.Stop())
	} else {
		tr.note("kill -9 the store")
		tr.must("kill", pg.Kill())
	}
	tr.wait(rng, 3*time.Second)
	tr.must("start the store", pg.Restart())
	tr.note("the store is back")
}

// retain lets retention take everything from the channels of brief, while they are
// published on. It is the store's own, as the router that rendezvous gives it calls it.
func (tr *trial) retain(rng *rand.Rand) {
	defer tr.hold("store")()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var all []string
	for _, channel := range tr.channels.all() {
		if namespace(channel) == brief {
			all = append(all, channel)
		}
	}
	tr.note("retention takes %v", all)
	call := tr.rec.now()
	for {
		n, err := tr.store.Trim(ctx, []history.Retention{{Namespace: brief, TTL: time.Millisecond}}, 0, 1000)
		if err != nil {
			tr.note("retention: %v", err)
			break
		}
		if n < 1000 {
			break
		}
	}
	ranges := make([]history.Range, len(all))
	for i, channel := range all {
		ranges[i] = history.Range{Channel: channel, Limit: 1}
	}
	pages, err := tr.store.Read(ctx, ranges)
	for err != nil && ctx.Err() == nil { // what it took has to be known
		tr.rest(100 * time.Millisecond)
		pages, err = tr.store.Read(ctx, ranges)
	}
	tr.must("read what retention left", err)
	for _, page := range pages {
		tr.rec.trimmed(ledger.Trim{Channel: page.Channel, Call: call, Return: tr.rec.now(), First: page.First})
	}
	tr.rest(time.Duration(rng.Int64N(int64(time.Second))))
}

// birth adds a channel of each namespace. Publishers draw it at once, by all routers.
func (tr *trial) birth(*rand.Rand) {
	defer tr.hold("channels")()
	n := len(tr.channels.all())
	names := tr.plan.namespaces
	if names == nil {
		names = []string{kept, kept, brief, loose}
		if len(tr.routers) > tr.members {
			names = append(names, split, split)
		}
	}
	for i, ns := range names {
		tr.channels.add(fmt.Sprintf("%s:%d", ns, n+i))
	}
	tr.note("new channels from number %d on", n)
}

func (tr *trial) pauseOwner(rng *rand.Rand) {
	tr.pause(rng, tr.routers[rng.IntN(tr.members)], 500*time.Millisecond+time.Duration(rng.Int64N(int64(3*time.Second))))
}

// lease is presence/etcd's, with the silence after which the others take over.
const lease = 10*time.Second + 3*time.Second

func (tr *trial) pauseBeyondLease(rng *rand.Rand) {
	tr.pause(rng, tr.routers[rng.IntN(tr.members)], lease+time.Duration(rng.Int64N(int64(2*time.Second))))
}

// pause stops a router with SIGSTOP, lets it go on and reads by it at once, before
// anything is published by it.
func (tr *trial) pause(rng *rand.Rand, r *router, d time.Duration) {
	defer tr.hold(r.ID)()
	tr.note("%s stands still for %v", r.ID, d)
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		tr.note("it does not run: %v", err)
		return
	}
	tr.rest(d)
	tr.must("go on", r.Signal(syscall.SIGCONT))
	tr.note("%s goes on", r.ID)
	for range 3 {
		for _, channel := range tr.channels.all() {
			if namespace(channel) != loose {
				tr.read("after the pause", r, channel, rng)
			}
		}
	}
}
