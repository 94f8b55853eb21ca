package run

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameSignal is how long after the first signal another one counts as the same:
// timeout(1), npm and others send theirs to the process and to its group.
const sameSignal = 250 * time.Millisecond

// Signals returns a context that ends with the first SIGINT or SIGTERM (leave in
// order) and one that ends with the second (leave at once). stop gives the signals
// back and ends both.
func Signals(parent context.Context) (ctx, abort context.Context, stop func()) {
	ctx, leave := context.WithCancel(parent)
	abort, leaveNow := context.WithCancel(parent)
	heard := make(chan os.Signal, 2)
	signal.Notify(heard, os.Interrupt, syscall.SIGTERM)
	done, ended := make(chan struct{}), make(chan struct{})
	// Owns nothing but the two contexts; stop ends it and waits.
	go func() {
		defer close(ended)
		var first time.Time
		for {
			select {
			case <-heard:
			case <-done:
				return
			}
			switch {
			case first.IsZero():
				first = time.Now()
				leave()
			case time.Since(first) > sameSignal:
				leaveNow()
			}
		}
	}()
	return ctx, abort, func() {
		signal.Stop(heard)
		close(done)
		<-ended
		leave()
		leaveNow()
	}
}
