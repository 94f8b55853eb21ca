// Package retention deletes what namespaces do not keep, and the rows of channels that
// nobody uses, and tells the store which channels are in use though nothing is published
// on them.
//
// The root makes it and runs it; router/table notes uses (InUse). It calls the store, and
// asks the views whether this router is the one that deletes. It touches no channel.
//
// Life: New does no I/O; Run owns two goroutines, one that deletes and one that notes
// uses, and ends with its context. InUse may be called from any goroutine and does not
// block.
//
// Limits: deletions go in bites of Config.Limit rows with a rest after each as long as
// it took; at most noteQueue uses wait, 1,000 a second are told.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/namespace"
	"github.com/spillway-io/spillway/router/views"
)

// deleter is no channel (names have no control characters): its owner is the
// one router that deletes.
const deleter = "\x00retention"

// Config of a Retention.
type Config struct {
	Every        time.Duration         // how often deletions run; 0: never
	Limit        int                   // most rows of one deletion
	KeyWindow    time.Duration         // how long idempotency keys are known
	ForgetAfter  time.Duration         // after how long an unused channel loses its row; 0: never
	StoreTimeout time.Duration         // longest one call may take; a deletion may take ten times as long
	Registry     prometheus.Registerer // nil: nothing is registered
}

// Retention runs for one router.
type Retention struct {
	cfg        Config
	store      history.Store
	namespaces *namespace.Set
	views      *views.Views
	notes      notes
	log        *slog.Logger

	trimmed, forgotten prometheus.Counter
}

// New makes a Retention. withEvents returns those of some channels of which the store has
// events, as far as memory knows: their rows stay anyway.
func New(cfg Config, store history.Store, namespaces *namespace.Set, v *views.Views, withEvents func([]string) []string, log *slog.Logger) *Retention {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_router_" + name, Help: help})
	}
	r := &Retention{
		cfg: cfg, store: store, namespaces: namespaces, views: v, notes: notes{withEvents: withEvents}, log: log,
		trimmed:   counter("trimmed_rows_total", "Events and keys deleted by retention."),
		forgotten: counter("forgotten_channels_total", "Rows of channels that nobody used any more, deleted by retention."),
	}
	if cfg.Registry != nil {
		cfg.Registry.MustRegister(r.trimmed, r.forgotten)
	}
	return r
}

// Run works until ctx ends.
func (r *Retention) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.deletes(ctx) })
	g.Go(func() error { return r.tells(ctx) })
	return g.Wait()
}

func (r *Retention) deletes(ctx context.Context) error {
	if r.cfg.Every == 0 {
		return nil
	}
	for pause(ctx, r.cfg.Every) {
		if !r.views.Owned(deleter) {
			continue
		}
		if err := r.Round(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("retention stopped early", "error", err)
		}
	}
	return nil
}

// Round deletes once all that may go.
func (r *Retention) Round(ctx context.Context) error {
	rules := r.namespaces.Retention()
	err := r.bites(ctx, r.trimmed, func(bite context.Context) (int, error) {
		return r.store.Trim(bite, rules, r.cfg.KeyWindow, r.cfg.Limit)
	})
	if err != nil || r.cfg.ForgetAfter == 0 {
		return err
	}
	return r.bites(ctx, r.forgotten, func(bite context.Context) (int, error) {
		return r.store.Forget(bite, r.cfg.ForgetAfter, r.cfg.Limit)
	})
}

// bites calls take until it takes less than it may.
func (r *Retention) bites(ctx context.Context, count prometheus.Counter, take func(context.Context) (int, error)) error {
	for {
		began := time.Now()
		bite, cancel := context.WithTimeout(ctx, 10*r.cfg.StoreTimeout)
		n, err := take(bite)
		cancel()
		count.Add(float64(n))
		if err != nil || n < r.cfg.Limit {
			return err
		}
		if !pause(ctx, time.Since(began)) {
			return nil
		}
	}
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
