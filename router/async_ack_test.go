package router

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
)

// An edge that shows a higher epoch makes the owner begin another: what waits for its
// ack goes along, and hears it from the store.
func TestAsyncAcksGoAlongIntoANewEpoch(t *testing.T) {
	n := start(t, nil, quick)
	first := n.publish1("later:a", `1`, "")
	n.eventuallyStored("later:a", "1")
	n.bus.away(true)
	n.store.away(true)
	acked := make(chan *routerv1.Placed, 1)
	go func() { // it ends with the publish, which the test waits for
		placed, err := n.publishErr("later:a", `2`, "")
		if err != nil {
			t.Error(err)
		}
		acked <- placed
	}()
	eventually(t, "it is numbered", func() bool { return n.sequencer.behind.queued.Load() > 0 })
	e := n.sync()
	seen := e.ask(&gatewayv1.Ask{Channel: "later:a"}).Epoch + 5
	head := e.ask(&gatewayv1.Ask{Channel: "later:a", SeenEpoch: seen, SeenOffset: 7})
	if head.Epoch <= seen || head.Head != 2 {
		t.Errorf("the new epoch: %v", head)
	}
	n.store.away(false)
	n.eventuallyStored("later:a", "1 2")
	select {
	case placed := <-acked:
		if placed != nil && (placed.Offset != 2 || placed.Epoch == first.Epoch) {
			t.Errorf("placed %v", placed)
		}
	case <-time.After(10 * time.Second):
		t.Error("never acked")
	}
	eventually(t, "nothing is counted as waiting", func() bool { return n.sequencer.events.Load() == 0 })
}

// A flush that failed acks nothing later: the bus may have lost what it was for.
func TestAsyncLaterFlushAcksNothingOfOneThatFailed(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.PublishDeadline = 1500 * time.Millisecond })
	n.publish1("later:a", `1`, "")
	n.eventuallyStored("later:a", "1")
	n.bus.away(true)
	n.store.away(true)
	if _, err := n.publishErr("later:a", `2`, "k"); err == nil {
		t.Error("acked without bus and store")
	}
	n.bus.away(false)
	if placed, err := n.publishErr("later:a", `3`, ""); err != nil || placed.Durability != routerv1.Durability_DURABILITY_ASYNC {
		t.Errorf("when the bus is back: %v %v", placed, err)
	}
	if again, err := n.publishErr("later:a", `2`, "k"); err == nil {
		t.Errorf("acked, and neither bus nor store has it: %v", again)
	}
	n.store.away(false)
	n.eventuallyStored("later:a", "1 2 3")
	if again := n.publish1("later:a", `2`, "k"); !again.Repeat || again.Offset != 2 || again.Durability != routerv1.Durability_DURABILITY_COMMITTED {
		t.Errorf("repeated: %v", again)
	}
	eventually(t, "nothing is counted as waiting", func() bool { return n.sequencer.events.Load() == 0 })
}

// slowBus holds what is published on one channel until it is released.
type slowBus struct {
	*recorder
	channel       string
	held, release chan struct{}
}

func (b *slowBus) Publish(e *gatewayv1.Envelope) {
	if e.Channel == b.channel && len(e.Events) > 0 {
		close(b.held)
		<-b.release
	}
	b.recorder.Publish(e)
}

// An ack says that a flush came after the event: one that began before the event was put
// on the bus acks nothing of it.
func TestAsyncFlushAcksOnlyWhatWasPublishedBefore(t *testing.T) {
	bus := &slowBus{recorder: &recorder{}, channel: "later:slow", held: make(chan struct{}), release: make(chan struct{})}
	n := startWith(t, nil, quick, func(d *Deps) { d.Bus = bus })
	n.store.onAppend(func(context.Context, []history.Run, func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		return nil, errAway // only the bus acks
	})
	flushing, flush := make(chan struct{}, 100), make(chan struct{})
	bus.mu.Lock()
	bus.onFlush = func() error { flushing <- struct{}{}; <-flush; return nil }
	bus.mu.Unlock()
	acked := make(chan string, 3)
	publish := func(channel string) {
		go func() { // ends with its publish, which the test waits for
			if _, err := n.publishErr(channel, `1`, ""); err != nil {
				t.Error(err)
			}
			acked <- channel
		}()
	}
	publish("later:a")
	<-flushing
	publish("later:b") // its signal finds the acker at work
	eventually(t, "b is on the bus", func() bool { return len(bus.offsets("later:b")) == 1 })
	publish("later:slow")
	<-bus.held
	close(flush)
	left := 3
	for timer := time.After(10 * time.Second); left > 1; left-- {
		select {
		case channel := <-acked:
			if channel == "later:slow" {
				t.Error("acked before it was on the bus")
			}
		case <-timer:
			t.Fatal("not acked")
		}
	}
	select {
	case <-acked:
		t.Error("acked before it was on the bus")
		left--
	case <-time.After(100 * time.Millisecond): // what is wrong has had its chance
	}
	close(bus.release)
	for range left {
		<-acked
	}
}

// What was published before a flush failed is not acked by the next one, though it came
// too late to be waited for: that flush tells nothing of what was lost before it.
func TestAsyncFlushThatFailedCountsForAllBeforeIt(t *testing.T) {
	n := start(t, nil, func(c *Config) { quick(c); c.PublishDeadline = 1500 * time.Millisecond })
	n.publish1("later:a", `1`, "")
	n.publish1("later:b", `1`, "")
	n.eventuallyStored("later:a", "1")
	n.eventuallyStored("later:b", "1")
	n.store.away(true)
	flushing, flush := make(chan struct{}), make(chan struct{})
	first := true
	n.bus.mu.Lock()
	n.bus.onFlush = func() error {
		if !first {
			return nil
		}
		first = false
		close(flushing)
		<-flush
		return errAway
	}
	n.bus.mu.Unlock()
	refused := make(chan error, 2)
	publish := func(channel string) {
		go func() { // ends with its publish, which the test waits for
			_, err := n.publishErr(channel, `2`, "")
			refused <- err
		}()
	}
	publish("later:a")
	<-flushing
	publish("later:b")
	eventually(t, "b is on the bus", func() bool { return len(n.bus.offsets("later:b")) == 2 })
	close(flush)
	for range 2 {
		if err := <-refused; err == nil {
			t.Error("acked, and neither bus nor store need have it")
		}
	}
	n.store.away(false)
	n.eventuallyStored("later:b", "1 2")
}

// The key of an event that the store lost is forgotten whole: it is not handed on as
// that of no event.
func TestAsyncKeyOfALostEventIsForgotten(t *testing.T) {
	onBackups(t, func(t *testing.T, b *backup) {
		n := start(t, b.store, quick)
		n.publish1("later:a", `1`, "kept")
		n.eventuallyStored("later:a", "1")
		b.save()
		n.publish1("later:a", `2`, "lost")
		n.eventuallyStored("later:a", "1 2")
		b.restore()
		n.publish1("later:a", `3`, "new")
		n.eventuallyStored("later:a", "1 3")
		shard := n.table.lock("later:a")
		handed := keysOf(n.hand.packLocked(shard.channels["later:a"], 1).keys)
		shard.mu.Unlock()
		want := map[history.Key]uint64{{Scope: "b", Key: "kept"}: 1, {Scope: "b", Key: "new"}: 2}
		if !maps.Equal(handed.offsets, want) {
			t.Errorf("handed %v, want %v", handed.offsets, want)
		}
	})
}

// While the store hangs, who waits for it to tell the row of a channel holds up nobody else.
func TestAsyncLooksAtTheStoreBesideItsLane(t *testing.T) {
	n := start(t, nil, quick)
	n.publish1("later:known", `1`, "")
	n.eventuallyStored("later:known", "1")
	looking, wait := make(chan struct{}), make(chan struct{})
	answer := sync.OnceFunc(func() { close(wait) })
	defer answer()
	n.store.onHeads(func(context.Context, []history.HeadQuery) {
		n.store.onHeads(nil)
		close(looking)
		<-wait // and no deadline counts
	})
	acked := make(chan *routerv1.Placed, 1)
	go func() { // ends with its publish, which the test waits for
		placed, err := n.publishErr("later:new", `1`, "")
		if err != nil {
			t.Error(err)
		}
		acked <- placed
	}()
	<-looking
	for i := range uint64(5) {
		if placed := n.publish1("later:known", `2`, ""); placed.Offset != i+2 {
			t.Errorf("placed %v", placed)
		}
	}
	select {
	case <-acked:
		t.Error("an unknown channel was acked before the store told its row")
	default:
	}
	answer()
	if placed := <-acked; placed.GetOffset() != 1 {
		t.Errorf("placed %v", placed)
	}
}

// A store that hangs is asked less and less, and at once again when it answers.
func TestAsyncLeavesAStoreThatHangsAlone(t *testing.T) {
	var w writeBehind
	waits := func() time.Duration { return time.Until(time.Unix(0, w.away.Load())) }
	var last time.Duration
	for range 3 {
		w.storeFailed()
		if now := waits(); now <= last {
			t.Errorf("left alone for %v, before for %v", now, last)
		} else {
			last = now
		}
	}
	for range 70 {
		w.storeFailed()
	}
	if now := waits(); now <= 0 || now > 4*time.Second {
		t.Errorf("left alone for %v after many failures", now)
	}
	if w.storeAnswered(); w.storeAway() {
		t.Error("away after an answer")
	}
	if w.storeFailed(); waits() > time.Second {
		t.Errorf("left alone for %v after the first failure", waits())
	}
}

// A call that hangs until it is cut off takes no time from the writer.
func TestAsyncIsWrittenThoughACallHangsAtTheEnd(t *testing.T) {
	n := start(t, nil, func(c *Config) {
		c.StopTimeout, c.DrainDelay, c.StoreTimeout, c.PublishDeadline = 4*time.Second, 0, 30*time.Second, 30*time.Second
	})
	cut, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		if strings.HasPrefix(runs[0].Channel, "chat:") {
			<-end
			return nil, context.Canceled
		}
		select {
		case <-cut:
			return next()
		default:
			return nil, errors.New("the store is away")
		}
	})
	n.publish1("later:a", `1`, "")
	hung := make(chan error, 1)
	go func() { // ends when it is cut off; waited for below
		_, err := n.publishErr("chat:a", `1`, "")
		hung <- err
	}()
	eventually(t, "the commit hangs", func() bool { appends, _, _ := n.store.counts(); return appends >= 2 })
	n.stop()
	if err := <-hung; err == nil {
		t.Error("the call that hangs was answered")
	}
	close(cut)
	n.eventuallyStored("later:a", "1")
}
