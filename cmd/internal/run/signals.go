package run

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

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
		for _, act := range []func(){leave, leaveNow} {
			select {
			case <-heard:
				act()
			case <-done:
				return
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
