package router

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// texts is what the store has of a channel.
func (n *node) texts(channel string) string {
	var out []string
	for i, e := range n.stored(channel) {
		if i > 0 && e.Offset != n.stored(channel)[i-1].Offset+1 {
			n.t.Errorf("%s has a hole before %d", channel, e.Offset)
		}
		out = append(out, string(e.Data))
	}
	return strings.Join(out, " ")
}

func (n *node) eventuallyStored(channel, want string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s has %s", channel, want), func() bool { return n.texts(channel) == want })
}

// quick lets the store's failures be tried again soon, and the end not wait for it.
func quick(c *Config) { c.StopTimeout, c.StoreTimeout = 300*time.Millisecond, 500*time.Millisecond }

// An asynchronous namespace is acked by the bus, written after it, and says so.
func TestAsyncIsAckedByTheBusAndWrittenLater(t *testing.T) {
	n := start(t, nil, nil)
	hold := make(chan struct{})
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		<-hold
		return next()
	})
	first := n.publish1("later:a", `1`, "k")
	if first.Offset != 1 || first.Durability != routerv1.Durability_DURABILITY_ASYNC {
		t.Errorf("placed %v", first)
	}
	if again := n.publish1("later:a", `1`, "k"); !again.Repeat || again.Offset != 1 {
		t.Errorf("repeat: %v", again)
	}
	if got := n.bus.offsets("later:a"); fmt.Sprint(got) != "[1]" {
		t.Errorf("on the bus before it is written: %v", got)
	}
	n.publish1("later:a", `2`, "")
	e := n.sync()
	head := e.ask(&gatewayv1.Ask{Channel: "later:a"})
	if a := e.ask(position("later:a", head.Epoch, 0)); !a.Recovered || offsetsOf(a.Events) != "[1 2]" {
		t.Errorf("recovered before it is written: %v", a)
	}
	close(hold)
	n.eventuallyStored("later:a", "1 2")
	eventually(t, "nothing is unwritten", func() bool { return n.sequencer.behind.bytes.Load() == 0 && n.sequencer.behind.queued.Load() == 0 })
	if committed := n.publish1("chat:a", `1`, ""); committed.Durability != routerv1.Durability_DURABILITY_COMMITTED {
		t.Errorf("placed %v", committed)
	}
	if none := n.publish1("brief:a", `1`, ""); none.Durability != routerv1.Durability_DURABILITY_NONE {
		t.Errorf("placed %v", none)
	}
}

// Without the bus the store acks, and says so; without both nobody does.
func TestAsyncIsAckedByTheStoreWhileTheBusIsAway(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.PublishDeadline = 1500 * time.Millisecond })
	n.bus.away(true)
	if placed := n.publish1("later:a", `1`, ""); placed.Durability != routerv1.Durability_DURABILITY_COMMITTED {
		t.Errorf("placed %v", placed)
	}
	n.store.away(true)
	if _, err := n.publishErr("later:a", `2`, "k"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("without bus and store: %v", err)
	}
	n.store.away(false)
	n.eventuallyStored("later:a", "1 2")
	if again := n.publish1("later:a", `2`, "k"); !again.Repeat || again.Offset != 2 || again.Durability != routerv1.Durability_DURABILITY_COMMITTED {
		t.Errorf("repeated when the store is back: %v", again)
	}
}

// The store is away: asynchronous channels go on, known ones in their epoch, and
// are written when it is back. Committed ones say so within their deadline.
func TestAsyncGoesOnWithoutTheStore(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.RetryFor = 300 * time.Millisecond })
	before := n.publish1("later:known", `1`, "")
	n.eventuallyStored("later:known", "1")
	n.store.away(true)
	began := time.Now()
	if _, err := n.publishErr("chat:a", `1`, ""); status.Code(err) != codes.Unavailable || time.Since(began) > n.cfg.PublishDeadline {
		t.Errorf("a committed namespace: %v after %v", err, time.Since(began))
	}
	during := n.publish1("later:known", `2`, "")
	if during.Epoch != before.Epoch || during.Offset != 2 {
		t.Errorf("a known channel: %v, before %v", during, before)
	}
	fresh := n.publish1("later:new", `1`, "")
	n.publish1("brief:a", `1`, "")
	e := n.sync()
	if a := e.ask(&gatewayv1.Ask{Channel: "later:new", Last: 5}); offsetsOf(a.Events) != "[1]" {
		t.Errorf("read from memory: %v", a)
	}
	n.store.away(false)
	n.eventuallyStored("later:known", "1 2")
	n.eventuallyStored("later:new", "1")
	if after := n.publish1("later:known", `3`, ""); after.Epoch != before.Epoch || after.Offset != 3 {
		t.Errorf("after the return: %v", after)
	}
	if after := n.publish1("later:new", `2`, ""); after.Epoch != fresh.Epoch && after.Offset != 2 {
		t.Errorf("after the return: %v, before %v", after, fresh)
	}
}

// A router takes a channel over while the store is away: it begins an epoch at 0, and
// another behind what the store has once that answers. All is there in the end.
func TestAsyncTakeoverWithoutTheStoreGoesOnBehindIt(t *testing.T) {
	shared := memory.New(memory.Default())
	a := start(t, shared, quick)
	old := a.publish1("later:a", `1`, "")
	a.publish1("later:a", `2`, "")
	a.eventuallyStored("later:a", "1 2")

	b := start(t, shared, func(c *Config) { quick(c); c.ID = "r2" })
	b.members.set(snapshotOf(5, routerMember("r2", "")))
	b.store.away(true)
	third := b.publish1("later:a", `3`, "k")
	if third.Offset != 1 || third.Epoch == old.Epoch {
		t.Errorf("without the store: %v, before %v", third, old)
	}
	e := b.sync()
	blind := e.ask(&gatewayv1.Ask{Channel: "later:a"})
	b.store.away(false)
	b.eventuallyStored("later:a", "1 2 3")
	again := b.publish1("later:a", `3`, "k")
	if !again.Repeat || again.Offset != 3 {
		t.Errorf("the key of what was numbered anew: %v", again)
	}
	fourth := b.publish1("later:a", `4`, "")
	if fourth.Offset != 4 || fourth.Epoch == third.Epoch {
		t.Errorf("behind the store: %v", fourth)
	}
	last := b.bus.last("later:a")
	if last.Base != 3 || last.Epoch <= blind.Epoch {
		t.Errorf("who was live has had 3: %v", last)
	}
	if r := e.ask(position("later:a", blind.Epoch, 1)); r.Recovered {
		t.Errorf("a position of the blind epoch: %v", r)
	}
	if r := e.ask(&gatewayv1.Ask{Channel: "later:a", Last: 9}); offsetsOf(r.Events) != "[1 2 3 4]" {
		t.Errorf("the newest of tail and store: %v", r)
	}
	r, err := b.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "later:a"})
	if err != nil || len(r.Events) == 0 || r.Events[0].GetJson() != "1" || r.Head != 4 {
		t.Errorf("history: %v %v", r, err)
	}
}

// The store loses what was written; what was not goes on behind what is left.
func TestAsyncGoesOnBehindAStoreThatLostHistory(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		n := start(t, b.store, quick)
		n.publish1("later:a", `1`, "")
		n.eventuallyStored("later:a", "1")
		b.save()
		n.publish1("later:a", `2`, "")
		n.eventuallyStored("later:a", "1 2")
		n.store.away(true)
		before := n.publish1("later:a", `3`, "")
		b.restore()
		n.store.away(false)
		n.eventuallyStored("later:a", "1 3")
		after := n.publish1("later:a", `4`, "")
		if after.Epoch == before.Epoch || after.Offset != 3 {
			t.Errorf("placed %v, before %v", after, before)
		}
	})
}

// Two owners number one channel: the older one's epoch ends, what it could not
// write is counted, and its readers are told by the epoch.
func TestAsyncOwnerThatWasDeposedIsFenced(t *testing.T) {
	shared := memory.New(memory.Default())
	a := start(t, shared, quick)
	a.publish1("later:a", `1`, "")
	a.eventuallyStored("later:a", "1")
	a.store.away(true)
	unwritten := a.publish1("later:a", `"lost"`, "")

	b := start(t, shared, func(c *Config) { quick(c); c.ID = "r2" })
	b.members.set(snapshotOf(5, routerMember("r2", "")))
	second := b.publish1("later:a", `2`, "")
	if second.Epoch == unwritten.Epoch || second.Offset != 2 {
		t.Errorf("the new owner: %v, the old %v", second, unwritten)
	}
	b.eventuallyStored("later:a", "1 2")
	a.members.set(snapshotOf(5, routerMember("r2", "")))
	a.store.away(false)
	eventually(t, "the old owner has given up", func() bool { return a.sequencer.behind.queued.Load() == 0 })
	b.publish1("later:a", `3`, "")
	b.eventuallyStored("later:a", "1 2 3")
	if got := counted(a.metrics.asyncLost); got != 1 {
		t.Errorf("%v events counted as lost", got)
	}
	if r := b.sync().ask(position("later:a", a.bus.last("later:a").Epoch, 2)); r.Recovered {
		t.Errorf("who has seen the lost event: %v", r)
	}
}

// What may be unwritten is bounded: past it the oldest goes, counted, and the
// channel begins a new epoch when it is written again.
func TestAsyncBacklogIsBounded(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.AsyncBytes, c.TailEvents, c.CacheBytes = 64<<10, 3, 200<<10 })
	before := n.publish1("later:a", `0`, "")
	n.eventuallyStored("later:a", "0")
	n.store.away(true)
	big := `"` + strings.Repeat("x", 2000) + `"`
	for range 100 {
		n.publish1("later:a", big, "")
	}
	lost := counted(n.metrics.asyncLost)
	if lost < 50 || n.sequencer.behind.bytes.Load() > n.cfg.AsyncBytes {
		t.Errorf("%v lost, %d bytes unwritten", lost, n.sequencer.behind.bytes.Load())
	}
	n.store.away(false)
	eventually(t, "what is left is written", func() bool { return n.sequencer.behind.queued.Load() == 0 })
	after := n.publish1("later:a", `1`, "")
	if after.Epoch == before.Epoch || after.Offset != uint64(1+100-lost+1) {
		t.Errorf("placed %v, before %v, %v lost", after, before, lost)
	}
	n.publish1("later:b", `1`, "")
	n.eventuallyStored("later:b", "1")
}

// An acked event that the store refuses is counted, and hidden from nobody.
func TestAsyncEventThatTheStoreRefuses(t *testing.T) {
	n := start(t, nil, quick)
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		for _, r := range runs {
			for _, e := range r.Events {
				if string(e.Data) == `"bad"` {
					return nil, &history.RefusedError{Err: errAway}
				}
			}
		}
		return next()
	})
	before := n.publish1("later:a", `1`, "")
	n.publish1("later:a", `2`, "")
	if _, err := n.publishErr("later:a", `"bad"`, ""); err != nil && status.Code(err) != codes.InvalidArgument {
		t.Errorf("the bus acks it, or the store refuses it first: %v", err)
	}
	n.publish1("later:a", `3`, "")
	n.publish1("later:b", `1`, "")
	n.eventuallyStored("later:a", "1 2 3")
	n.eventuallyStored("later:b", "1")
	after := n.publish1("later:a", `4`, "")
	if after.Offset != 4 || after.Epoch == before.Epoch || counted(n.metrics.asyncLost) != 1 {
		t.Errorf("placed %v, before %v, %v lost", after, before, counted(n.metrics.asyncLost))
	}
}

// A write whose answer is lost is recognised, not written twice.
func TestAsyncWriteOfUnknownOutcome(t *testing.T) {
	n := start(t, nil, quick)
	fails := 3
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		outcomes, err := next()
		if fails--; fails >= 0 {
			return nil, errAway
		}
		return outcomes, err
	})
	first := n.publish1("later:a", `1`, "")
	n.publish1("later:a", `2`, "")
	n.publish1("later:a", `3`, "")
	eventually(t, "all is written", func() bool { return n.sequencer.behind.queued.Load() == 0 })
	n.eventuallyStored("later:a", "1 2 3")
	if last := n.publish1("later:a", `4`, ""); last.Epoch != first.Epoch || last.Offset != 4 {
		t.Errorf("placed %v, the first %v", last, first)
	}
}

// What is older than the tail is read from the store, and joined with the tail.
func TestAsyncReadsJoinStoreAndTail(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.TailEvents, c.TailAge = 3, time.Millisecond })
	for i := range 20 {
		n.publish1("later:a", fmt.Sprint(i+1), "")
	}
	eventually(t, "all is written", func() bool { return n.sequencer.behind.queued.Load() == 0 })
	n.store.away(true)
	n.publish1("later:a", `21`, "") // lets the tail go; is not written
	n.store.away(false)
	e := n.sync()
	head := e.ask(&gatewayv1.Ask{Channel: "later:a"})
	var got []string
	for at := uint64(5); at < head.Head; {
		a := e.ask(position("later:a", head.Epoch, at))
		if a.Status == gatewayv1.Status_STATUS_UNAVAILABLE {
			continue
		}
		if !a.Recovered || len(a.Events) == 0 {
			t.Fatalf("after %d: %v", at, a)
		}
		for _, ev := range a.Events {
			at++
			got = append(got, string(ev.Data))
		}
	}
	if strings.Join(got, " ") != "6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21" {
		t.Errorf("read %v", got)
	}
	if a := e.ask(&gatewayv1.Ask{Channel: "later:a", Last: 7}); offsetsOf(a.Events) != "[15 16 17 18 19 20 21]" {
		t.Errorf("last 7: %v", a)
	}
	var pages []string
	at := (*uint64)(nil)
	for {
		r, err := n.hist.ReadHistory(testContext(t), &routerv1.ReadHistoryRequest{Channel: "later:a", Reverse: true, Offset: at, Limit: 5})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range r.Events {
			pages = append(pages, ev.GetJson())
			at = &ev.Offset
		}
		if !r.More {
			break
		}
	}
	if want := "21 20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1"; strings.Join(pages, " ") != want {
		t.Errorf("reverse: %v", pages)
	}
}

func counted(c prometheus.Counter) float64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}
