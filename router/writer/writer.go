// Package writer brings runs of publications to the store: batches of runs of many
// channels, one transaction each. It loads the rows of channels whose position is not
// known, looks up idempotency keys, finds out what became of runs of unknown outcome,
// numbers, appends, and halves a batch that the store refuses until the bad event is
// alone. What it found it writes into the runs and gives them back.
//
// It takes runs from router/table, when that says that a channel is ready, and calls the store and router/renewal; nobody calls
// it. A line in it may touch the publications of the runs that it holds, and no channel.
//
// Life: New does no I/O; Run owns Config.Committers goroutines until its context ends. A
// batch that has begun is finished: only the store's own deadline ends it.
//
// Invariants: every run that was taken is brought back, once; of each publication in it
// exactly one of these is said: it is in a part, in an unknown attempt, answered, or back.
//
// Left out on purpose: who may number a channel (the fence in the store decides), and
// what is sent when a run is stored (router/channel decides, router/table sends).
package writer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/renewal"
	"github.com/spillway-io/spillway/router/views"
)

// Config of a Writer.
type Config struct {
	Committers   int           // batches in the store at once: 1 for SQLite, 2 for PostgreSQL
	BatchEvents  int           // most events of one batch
	BatchBytes   int           // most bytes of one batch, past its first event
	StoreTimeout time.Duration // longest one call of the store may take
	RetryFor     time.Duration // a publication younger than this is tried again when the store fails
	RetryWait    time.Duration // after the first failure of the store; it doubles up to twenty times
	Now          func() time.Time
	Registry     prometheus.Registerer // nil: nothing is registered
}

// Source is where runs come from and go back to (table.Table).
type Source interface {
	Wake() <-chan struct{} // signalled when a run may be taken
	Take(events int, bytes int64) []*channel.Run
	Written([]*channel.Run)
}

// Writer writes for one router.
type Writer struct {
	cfg     Config
	store   history.Store
	source  Source
	views   *views.Views
	renewer *renewal.Renewer
	log     *slog.Logger
	metrics *metrics
}

// New makes a Writer.
func New(cfg Config, store history.Store, source Source, v *views.Views, renewer *renewal.Renewer, log *slog.Logger) *Writer {
	return &Writer{cfg: cfg, store: store, source: source, views: v, renewer: renewer, log: log, metrics: newMetrics(cfg.Registry)}
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	g := errgroup.Group{}
	for range w.cfg.Committers {
		g.Go(func() error { return w.commits(ctx) }) // ends with ctx, after its batch
	}
	return g.Wait()
}

// commits is one committer.
func (w *Writer) commits(ctx context.Context) error {
	failures := 0
	for {
		runs := w.source.Take(w.cfg.BatchEvents, int64(w.cfg.BatchBytes))
		if len(runs) == 0 {
			select {
			case <-w.source.Wake():
				continue
			case <-ctx.Done():
				return nil
			}
		}
		err := w.commit(context.WithoutCancel(ctx), runs)
		w.source.Written(runs)
		if err == nil {
			failures = 0
			continue
		}
		if failures == 0 {
			w.log.Warn("the store failed; publishes wait and are tried again", "error", err)
		}
		failures++
		if !pause(ctx, backoff(w.cfg.RetryWait, failures)) {
			return nil
		}
	}
}

// commit brings one batch to the store. The error says that the store failed and the
// committer had better wait; everything is accounted for.
func (w *Writer) commit(ctx context.Context, runs []*channel.Run) error {
	began := time.Now()
	batch := make([]*work, len(runs))
	for i, r := range runs {
		r.Answers = make([]channel.Answer, 0, len(r.Pubs))
		batch[i] = &work{Run: r, at: r.Believed}
	}
	if err := w.prepare(ctx, batch); err != nil {
		w.metrics.failures.Inc()
		for _, k := range batch {
			w.again(k, k.Pubs)
		}
		return err
	}
	all := make([]piece, len(batch))
	for i, k := range batch {
		all[i] = piece{k, k.Pubs}
	}
	err := w.append(ctx, all)
	w.metrics.commitSeconds.Observe(time.Since(began).Seconds())
	return err
}

// backoff is wait, doubled per failure up to twenty times, with jitter.
func backoff(wait time.Duration, failures int) time.Duration {
	d := min(20*wait, wait<<min(failures-1, 5))
	return d/2 + rand.N(d/2+1)
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
