package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// ErrAborted is the result of a second signal.
var ErrAborted = errors.New("stopped at once by a second signal")

// afterAbort is what parts get to notice that everything ends at once.
const afterAbort = time.Second

// stopWithin is how long a part may take to stop unless it says more.
const stopWithin = 10 * time.Second

// part is one thing that runs.
type part struct {
	name   string
	run    func(ctx context.Context) error
	within time.Duration

	// set by Run
	cancel context.CancelFunc
	done   chan struct{} // closed after err was set
	err    error
}

// named says whose error it is, once.
func (p *part) named(err error) error {
	if strings.HasPrefix(err.Error(), p.name+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// Group is a set of parts that live together. Add all, then Run once.
type Group struct {
	log   *slog.Logger
	parts []*part
}

// NewGroup makes an empty group.
func NewGroup(log *slog.Logger) *Group { return &Group{log: log} }

// Add appends a part. run must return soon after its context ended: within ten
// seconds, or the given longer time; past it the stop goes on without it.
func (g *Group) Add(name string, run func(ctx context.Context) error, within ...time.Duration) {
	p := &part{name: name, run: run, within: stopWithin, done: make(chan struct{})}
	if len(within) > 0 {
		p.within = max(within[0], stopWithin)
	}
	g.parts = append(g.parts, p)
}

// Run starts all parts and waits until ctx ends or one of them returns. Then it stops
// them one after the other, the last added first. abort stops all at once. The
// result is the first failure, nil if there was none.
func (g *Group) Run(ctx, abort context.Context) error {
	first := make(chan *part, len(g.parts))
	for _, p := range g.parts {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		p.cancel = cancel
		// Runs one part; stopPart (or the abort) ends it and waits for done.
		go func() {
			p.err = p.run(own)
			close(p.done)
			first <- p
		}()
	}
	var err error
	select {
	case <-ctx.Done():
	case <-abort.Done():
	case p := <-first:
		if err = p.err; err == nil || errors.Is(err, context.Canceled) {
			err = errors.New("ended by itself")
		}
		err = p.named(err)
	}
	return g.stop(abort, err)
}

// stop ends the parts in order; err is why, nil if it was asked for.
func (g *Group) stop(abort context.Context, err error) error {
	for i := len(g.parts) - 1; i >= 0; i-- {
		p := g.parts[i]
		p.cancel()
		timer := time.NewTimer(p.within)
		select {
		case <-p.done:
			if e := p.err; e != nil && !errors.Is(e, context.Canceled) && err == nil {
				err = p.named(e)
			}
		case <-timer.C:
			g.log.Error("a part does not stop", "part", p.name, "after", p.within)
			if err == nil {
				err = fmt.Errorf("%s does not stop", p.name)
			}
		case <-abort.Done():
			timer.Stop()
			return g.abort(err)
		}
		timer.Stop()
	}
	return err
}

// abort ends everything and waits for a moment only.
func (g *Group) abort(err error) error {
	for _, p := range g.parts {
		p.cancel()
	}
	timer := time.NewTimer(afterAbort)
	defer timer.Stop()
	for _, p := range g.parts {
		select {
		case <-p.done:
		case <-timer.C:
			return errors.Join(err, ErrAborted)
		}
	}
	return errors.Join(err, ErrAborted)
}
