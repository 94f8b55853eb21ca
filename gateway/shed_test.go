package gateway

import (
	"runtime"
	"testing"
	"time"

	"github.com/spillway-io/spillway/gateway/feed"
)

// during is a message that lets a test stand in the middle of a loop's turn.
type during func(l *loop)

func (f during) apply(l *loop) { f(l) }

// inATurn runs do in the middle of a turn of the only loop, whose inbox takes no live
// events meanwhile.
func (w *world) inATurn(do func(l *loop)) {
	w.t.Helper()
	done := make(chan struct{})
	l := w.edge.loops[0]
	l.inbox.Post(during(func(l *loop) {
		l.liveBytes.Add(1 << 40)
		defer close(done)
		defer l.liveBytes.Add(-1 << 40)
		do(l)
	}))
	<-done
}

// publishShed publishes events that the loop lets go.
func (w *world) publishShed(l *loop, channel string, n int) {
	for range n {
		w.publish(channel, `0`)
	}
	w.waits("they are shed", func() bool {
		l.shed.mu.Lock()
		defer l.shed.mu.Unlock()
		_, shed := l.shed.channels[channel]
		return shed && len(w.queues[w.shard(channel)]) == 0
	})
}

// waits is eventually for the goroutine of a loop, which must not be left.
func (w *world) waits(what string, ok func() bool) {
	for until := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(until) {
			w.t.Errorf("still not: %s", what)
			return
		}
	}
}

func (w *world) shard(channel string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.interest[channel]
}

// A loop that is too far behind lets live events go. A subscription that becomes live in
// the same moment, by what came while the loop was at work, must hear of it too: no
// later event may ever show what is missing.
func TestAnEventShedWhileASubscriptionBecomesLiveIsFetched(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Loops = 1 })
	w.publish("chat:a", `1`)
	w.set(func() { w.away = true })
	c := w.dial()
	c.send(`{"type":"connect","id":1,"subscriptions":[{"channel":"chat:a","epoch":"7","offset":0}]}`)
	c.expect(`{"type":"connected","subscriptions":[{"channel":"chat:a","pending":true}]}`)

	w.inATurn(func(l *loop) {
		w.set(func() { w.away = false })
		w.waits("the verdict came", func() bool { return l.inbox.Len() > 0 })
		w.publishShed(l, "chat:a", 1)
	})
	c.expect(`{"type":"subscribed","recovered":true}`)
	c.expectEvents("chat:a", 1, 2)
}

// Events that a loop let go are not part of a gap that begins behind them: history has
// them, so they are fetched, whatever else the loop hears in the same turn.
func TestAGapTakesNothingThatWasShedBeforeIt(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Loops = 1 })
	w.publish("chat:a", `1`)
	c := w.connect(`,"subscriptions":[{"channel":"chat:a"}]`)
	c.expect(`{"type":"connected","subscriptions":[{"channel":"chat:a","offset":1}]}`)
	w.inATurn(func(l *loop) {
		w.publishShed(l, "chat:a", 2)
		l.Gap(feed.Gap{Channel: "chat:a", Epoch: w.epoch, From: 3, Offset: 5, Reason: feed.ReasonHistory})
	})
	c.expectEvents("chat:a", 2, 3)
}

// Who fell behind what history keeps is told of the loss as far as it goes, and is given
// what is left.
func TestWhoFellBehindHistoryGetsWhatIsLeft(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Loops = 1 })
	w.publish("chat:a", `1`)
	c := w.connect(`,"subscriptions":[{"channel":"chat:a"}]`)
	c.expect(`{"type":"connected","subscriptions":[{"channel":"chat:a","offset":1}]}`)
	w.inATurn(func(l *loop) {
		w.publishShed(l, "chat:a", 4)
		w.set(func() { w.first["chat:a"] = 3 })
	})
	c.expect(`{"type":"gap","channel":"chat:a","offset":3,"reason":"history"}`)
	c.expectEvents("chat:a", 4, 5)
	w.publish("chat:a", `6`)
	c.expectEvents("chat:a", 6, 6)
}
