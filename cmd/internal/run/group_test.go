package run

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary notes what happened in which order.
type diary struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// part waits for its context, then takes a while to stop.
func (d *diary) part(name string, takes time.Duration) (string, func(context.Context) error) {
	return name, func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(takes)
		d.note(name)
		return ctx.Err()
	}
}

func never(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

func TestPartsStopInReverseEachWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := NewGroup(slog.New(slog.DiscardHandler))
		g.Add(d.part("a", 0))
		g.Add(d.part("b", time.Second))
		g.Add(d.part("c", 5*time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if err := g.Run(ctx, never(t)); err != nil {
			t.Error(err)
		}
		if !slices.Equal(d.lines, []string{"c", "b", "a"}) {
			t.Errorf("stopped as %v", d.lines)
		}
	})
}

func TestFirstFailureStopsAllAndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		broken := errors.New("broken")
		g := NewGroup(slog.New(slog.DiscardHandler))
		g.Add(d.part("a", 0))
		g.Add("b", func(context.Context) error { return broken })
		g.Add(d.part("c", time.Second))
		err := g.Run(t.Context(), never(t))
		if !errors.Is(err, broken) || err.Error() != "b: broken" {
			t.Errorf("got %v", err)
		}
		if !slices.Equal(d.lines, []string{"c", "a"}) {
			t.Errorf("stopped as %v", d.lines)
		}
	})
}

func TestPartThatEndsByItselfIsAFailure(t *testing.T) {
	g := NewGroup(slog.New(slog.DiscardHandler))
	g.Add("a", func(context.Context) error { return nil })
	if err := g.Run(t.Context(), never(t)); err == nil || err.Error() != "a: ended by itself" {
		t.Errorf("got %v", err)
	}
}

func TestPartThatHangsDoesNotHoldTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		g := NewGroup(slog.New(slog.DiscardHandler))
		g.Add(d.part("a", 0))
		g.Add("hangs", func(context.Context) error { <-release; return nil }, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := g.Run(ctx, never(t))
		if err == nil || err.Error() != "hangs does not stop" || time.Since(start) != time.Minute || !slices.Equal(d.lines, []string{"a"}) {
			t.Errorf("got %v after %v, stopped %v", err, time.Since(start), d.lines)
		}
		close(release)
	})
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(slog.New(slog.DiscardHandler))
		slow := func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(9 * time.Second)
			return nil
		}
		g.Add("a", slow)
		g.Add("b", slow)
		ctx, cancel := context.WithCancel(t.Context())
		abort, abortNow := context.WithCancel(t.Context())
		cancel()
		time.AfterFunc(2*time.Second, abortNow)
		start := time.Now()
		err := g.Run(ctx, abort)
		if !errors.Is(err, ErrAborted) || time.Since(start) > 4*time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		time.Sleep(time.Minute) // the parts end
	})
}

func TestExitCodesAndOneLine(t *testing.T) {
	taken := &PortTakenError{What: "edge", Addr: "127.0.0.1:1", Key: "--ws-port"}
	for _, c := range []struct {
		err  error
		code int
		line string
	}{
		{nil, ExitDone, ""},
		{errors.New("a\n\tb\n"), ExitFailed, "spillway: a; b\n"},
		{errors.Join(errors.New("x"), Usagef("y %d", 1)), ExitUsage, "spillway: x; y 1\n"},
		{taken, ExitUsage, "spillway: edge: 127.0.0.1:1 is already in use; choose another with --ws-port\n"},
	} {
		var out strings.Builder
		code := Main("spillway", &out, func(_, _ context.Context) error { return c.err })
		if code != c.code || out.String() != c.line {
			t.Errorf("%v: code %d, printed %q", c.err, code, out.String())
		}
	}
}
