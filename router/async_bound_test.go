package router

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// letGoDuringAppend writes ten events in one batch, holds the append, and publishes meanwhile so
// much that the tail lets the oldest two of the ten go. The append's answer is err.
func letGoDuringAppend(t *testing.T, err error) (n *node, big string) {
	n = start(t, nil, func(c *Config) {
		quick(c)
		c.AsyncBytes, c.TailEvents, c.TailAge, c.StoreTimeout = 64<<10, 12, time.Millisecond, 10*time.Second
	})
	n.publish1("later:a", `0`, "")
	n.eventuallyStored("later:a", "0")
	n.store.away(true)
	for _, v := range strings.Fields("1 2 3 4 5 6 7 8 9 10") {
		n.publish1("later:a", v, "")
	}
	begun, release := make(chan struct{}), make(chan struct{})
	n.store.onAppend(func(ctx context.Context, runs []history.Run, next func() ([]history.Outcome, error)) ([]history.Outcome, error) {
		n.store.onAppend(nil)
		close(begun)
		<-release
		outcomes, _ := next()
		return outcomes, err
	})
	n.store.away(false)
	<-begun
	big = `"` + strings.Repeat("x", 20<<10) + `"`
	for range 4 {
		n.publish1("later:a", big, "")
	}
	if counted(n.metrics.asyncLoose) != 1 {
		t.Fatal("nothing was let go")
	}
	close(release)
	return n, big
}

// What the tail lets go while it is being written, past the bound of what may be
// unwritten, is written all the same.
func TestAsyncTailLetGoDuringAWrite(t *testing.T) {
	n, big := letGoDuringAppend(t, nil)
	n.eventuallyStored("later:a", "0 1 2 3 4 5 6 7 8 9 10"+strings.Repeat(" "+big, 4))
}

// The same when the write's outcome is unknown: what is still in the tail is recognised in the
// store, and not written twice.
func TestAsyncTailLetGoDuringAWriteOfUnknownOutcome(t *testing.T) {
	n, big := letGoDuringAppend(t, errAway)
	n.eventuallyStored("later:a", "0 1 2 3 4 5 6 7 8 9 10"+strings.Repeat(" "+big, 4))
}
