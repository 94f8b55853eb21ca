package gateway

import (
	"testing"
	"time"
)

// during is a message that lets a test stand in the middle of a loop's turn.
type during func(l *loop)

func (f during) apply(l *loop) { f(l) }

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

	done := make(chan string)
	w.edge.loops[0].inbox.post(during(func(l *loop) {
		waits := func(ok func() bool) bool {
			for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(time.Millisecond) {
				if ok() {
					return true
				}
			}
			return false
		}
		l.liveBytes.Add(1 << 40)
		defer l.liveBytes.Add(-1 << 40)
		w.set(func() { w.away = false })
		if !waits(func() bool { l.inbox.mu.Lock(); defer l.inbox.mu.Unlock(); return len(l.inbox.queue) > 0 }) {
			done <- "no verdict came"
			return
		}
		w.publish("chat:a", `2`)
		if !waits(func() bool { l.shed.mu.Lock(); defer l.shed.mu.Unlock(); return len(l.shed.channels) > 0 }) {
			done <- "nothing was shed"
			return
		}
		done <- ""
	}))
	if problem := <-done; problem != "" {
		t.Fatal(problem)
	}
	c.expect(`{"type":"subscribed","recovered":true}`)
	c.expectEvents("chat:a", 1, 2)
}
