package gateway

import (
	"strings"
	"testing"
	"time"
)

// Two channels of one client have more backfill than its queue takes at once. While the
// rest of one cannot be read, the other goes on.
func TestAChannelThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.SendQueueBytes = 8 << 10 })
	data := `"` + strings.Repeat("x", 700) + `"`
	const events = 20
	for range events {
		w.publish("chat:a", data)
		w.publish("chat:b", data)
	}
	w.set(func() { w.stuck = "chat:a" })
	c := w.dial()
	c.send(`{"type":"connect","id":1,"subscriptions":[{"channel":"chat:a","epoch":"7","offset":0},{"channel":"chat:b","epoch":"7","offset":0}]}`)
	c.expect(`{"type":"connected"}`)
	next := map[string]int{}
	until := func(channel string) {
		t.Helper()
		for end := time.Now().Add(patience); next[channel] < events && time.Now().Before(end); {
			f := c.next()
			if f["type"] != "event" {
				t.Fatalf("%v", f)
			}
			name := f["channel"].(string)
			if next[name]++; int(f["offset"].(float64)) != next[name] {
				t.Fatalf("%s: offset %v, want %d", name, f["offset"], next[name])
			}
		}
	}
	until("chat:b")
	w.set(func() { w.stuck = "" })
	until("chat:a")
}
