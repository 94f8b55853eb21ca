package channel_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/views"
)

const name = "chat:a"

// members is a membership that a test moves.
type members struct {
	snapshot atomic.Pointer[presence.Snapshot]
	changed  chan struct{}
	losses   atomic.Uint64
}

func newMembers() *members {
	m := &members{changed: make(chan struct{})}
	m.set(presence.NewSnapshot(nil, 0))
	return m
}

func (m *members) set(s *presence.Snapshot)     { m.snapshot.Store(s) }
func (m *members) Snapshot() *presence.Snapshot { return m.snapshot.Load() }
func (m *members) Changed() <-chan struct{}     { return m.changed }
func (m *members) Incarnation() uint64          { return 0 }
func (m *members) LeaseLosses() uint64          { return m.losses.Load() }

// routersOf is a view: routers that serve, and those that are on their way out.
func routersOf(revision int64, serving map[string]bool) *presence.Snapshot {
	var all []*presence.Member
	for id, serves := range serving {
		state := gatewayv1.State_STATE_DRAINING
		if serves {
			state = gatewayv1.State_STATE_SERVING
		}
		all = append(all, &presence.Member{Id: id, Role: gatewayv1.Role_ROLE_ROUTER, State: state})
	}
	return presence.NewSnapshot(all, revision)
}

// bench is one router with one channel: it plays the shard.
type bench struct {
	id      string
	members *members
	views   *views.Views
	c       *channel.Channel
	step    channel.Step
	log     []string // what was wanted since the last command

	ready, watched bool
	sought         int
	offers         []string
	reads          []*channel.ReadQuery
	counts         [channel.Counters]int
	generation     uint64
	names          map[*channel.Publication]string

	fan    func(*gatewayv1.Envelope)
	finish func(*channel.Publication, channel.Result)
	drop   func(*channel.Publication)
	pass   func(to string, pubs []*channel.Publication)
}

func config() channel.Config {
	return channel.Config{
		Router: "a", QueueBytes: 4000, TailAge: time.Minute, TailEvents: 100, TailBytes: 1 << 20,
		HandoverWait: time.Second, HandoverGrace: 3 * time.Second, KeepEvery: time.Hour, RetrySpread: time.Second,
	}
}

func newBench(id string, c *channel.Channel) *bench {
	b := &bench{id: id, members: newMembers(), c: c, generation: 1, names: make(map[*channel.Publication]string)}
	b.views = views.New(views.Config{Self: id, Recheck: time.Minute, PauseLimit: time.Hour, Window: 30 * time.Second}, b.members)
	cfg := config()
	cfg.Router = id
	b.step = channel.Step{Config: &cfg, Out: b}
	b.fan = func(*gatewayv1.Envelope) {}
	b.finish = func(p *channel.Publication, r channel.Result) { p.Finish(r) }
	b.drop = func(*channel.Publication) {}
	b.pass = func(string, []*channel.Publication) {}
	return b
}

// do makes a step.
func (b *bench) do(f func(*channel.Channel, *channel.Step)) {
	now := time.Now()
	b.step.Now, b.step.Wall, b.step.Look = now, now, b.views.Look(now)
	f(b.c, &b.step)
}

func (b *bench) note(format string, args ...any) { b.log = append(b.log, fmt.Sprintf(format, args...)) }

func (b *bench) namesOf(pubs []*channel.Publication) string {
	var all []string
	for _, p := range pubs {
		all = append(all, b.names[p])
	}
	return strings.Join(all, " ")
}

func at(p channel.Position) string { return fmt.Sprintf("%d:%d", p.Epoch, p.Offset) }

func eventsOf(events []*gatewayv1.BusEvent) string {
	if len(events) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d to %d", events[0].Offset, events[len(events)-1].Offset)
}

// The effects.

func (b *bench) Ready() {
	if !b.ready {
		b.note("ready")
	}
	b.ready = true
}

func (b *bench) Fan(e *gatewayv1.Envelope) {
	b.note("fan %d:%d, base %d, events %s", e.Epoch, e.Head, e.Base, eventsOf(e.Events))
	b.fan(e)
}

func (b *bench) Finish(p *channel.Publication, r channel.Result) {
	b.note("finish %s: %s", b.names[p], resultOf(r))
	b.finish(p, r)
}

func resultOf(r channel.Result) string {
	switch {
	case r.Code == 0 && r.Repeat:
		return fmt.Sprintf("repeat of %d:%d", r.Epoch, r.Offset)
	case r.Code == 0:
		return fmt.Sprintf("%d:%d, %v", r.Epoch, r.Offset, r.Durability)
	}
	return r.Message
}

func (b *bench) Drop(p *channel.Publication) {
	b.note("drop %s", b.names[p])
	b.drop(p)
}

func (b *bench) Pass(to string, pubs []*channel.Publication) {
	b.note("pass to %s: %s", to, b.namesOf(pubs))
	b.pass(to, pubs)
}

func (b *bench) Read(q *channel.ReadQuery) {
	b.reads = append(b.reads, q)
	what := "head"
	switch k := &q.Key; {
	case k.Reverse:
		what = fmt.Sprintf("%d before %d", k.Limit, k.Before)
	case !k.Head:
		what = fmt.Sprintf("%d after %d", k.Limit, k.After)
	}
	mark := ""
	if q.Mark.Kept {
		mark += ", to be kept"
	}
	if q.Mark.Claims {
		mark += ", may claim"
	}
	b.note("read %d: %s%s", len(b.reads), what, mark)
}

func (b *bench) Seek() {
	b.sought++
	b.note("seek")
}

func (b *bench) Watch() { b.watched = true }

func (b *bench) Offer(to string, first bool) {
	b.offers = append(b.offers, to)
	if first {
		b.note("offer to %s, first", to)
	} else {
		b.note("offer to %s", to)
	}
}

func (b *bench) Repeat() {}

func (b *bench) InUse() bool {
	b.note("in use")
	return true
}

func (b *bench) NewEpoch(above uint64) uint64 {
	return max(b.step.Look.Revision()*100+b.generation, above+1)
}

func (b *bench) Jitter(time.Duration) time.Duration { return 0 }

var counters = [channel.Counters]string{
	"turned away", "passed", "from tail", "from store", "unavailable", "claim refused", "race lost", "outcome unknown",
	"arrived", "taken", "refused", "late", "nobody", "busy",
}

func (b *bench) Count(c channel.Counter, n int) {
	b.counts[c] += n
	b.note("count %s", counters[c])
}
