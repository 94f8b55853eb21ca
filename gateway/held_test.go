package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A client comes back to many channels with more backfill than its queue holds. What
// was held behind `connected` overflows the queue when it is let go, since the reply
// stands in it already; whatever has no room then is fetched, not skipped.
func TestWhatWasHeldBehindConnectedIsDeliveredWhole(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.SendQueueBytes = 8 << 10 })
	const channels, events = 60, 10
	data := `"` + strings.Repeat("x", 700) + `"`
	var asks []string
	for i := range channels {
		name := fmt.Sprint("chat:", i)
		for range events {
			w.publish(name, data)
		}
		asks = append(asks, fmt.Sprintf(`{"channel":%q,"epoch":"7","offset":0}`, name))
	}
	c := w.dial("spillway.v1.json")
	c.send(`{"type":"connect","id":1,"token":"` + tokenOf(t, nil) + `","subscriptions":[` + strings.Join(asks, ",") + `]}`)
	c.expect(`{"type":"connected"}`)
	next := map[string]int{}
	for n, until := 0, time.Now().Add(patience); n < channels*events && time.Now().Before(until); {
		f := c.next()
		if f["type"] != "event" {
			t.Fatalf("%v", f)
		}
		name := f["channel"].(string)
		if next[name]++; int(f["offset"].(float64)) != next[name] {
			t.Fatalf("%s: offset %v, want %d", name, f["offset"], next[name])
		}
		n++
	}
}
