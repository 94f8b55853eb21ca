// Package renewal begins a new epoch for a channel of which the store has less than it
// has shown: it was restored, or a replica without the newest commits took over. Offsets
// would be given twice in one epoch, and whoever saw the first would miss the second.
//
// What counts is what was shown before the store was read, and it is read twice, from
// the primary; the row is compared once more when it is renewed. So neither a commit that
// overtakes a read nor one stale answer renews anything.
//
// router/writer and router/backfill call it with the heads that they have read. It has no
// goroutine and keeps nothing; each call lasts as long as its context lets the store.
package renewal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

var errMoved = errors.New("the channel's row moves while it is renewed")

// Renewer begins new epochs. It may be used from any goroutine.
type Renewer struct {
	store   history.Store
	log     *slog.Logger
	behind  prometheus.Counter
	renewed prometheus.Counter
}

// New makes a Renewer. registry may be nil: then its counters are not registered.
func New(store history.Store, log *slog.Logger, registry prometheus.Registerer) *Renewer {
	renewed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_router_epochs_renewed_total", Help: "Channels that began a new epoch, by cause.",
	}, []string{"cause"})
	r := &Renewer{store: store, log: log, renewed: renewed.WithLabelValues("store_behind"), behind: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "spillway_router_store_behind_total", Help: "Heads read, twice, below one that was seen before: lost history.",
	})}
	if registry != nil {
		registry.MustRegister(renewed, r.behind)
	}
	return r
}

// Check corrects heads, of distinct channels, that are below what had been shown before
// they were read: by a second look, or by a new epoch. queries are those that the heads
// answer. An error leaves the heads unusable.
func (r *Renewer) Check(ctx context.Context, queries []history.HeadQuery, heads []history.Head, shown []channel.Position) error {
	below := func(i int) bool {
		return shown[i].Above(channel.Position{Epoch: heads[i].Epoch, Offset: heads[i].Offset})
	}
	var again []history.HeadQuery
	var which []int
	for i := range heads {
		if below(i) {
			again, which = append(again, queries[i]), append(which, i)
		}
	}
	if len(again) == 0 {
		return nil
	}
	found, err := r.store.Heads(ctx, again)
	if err != nil {
		return fmt.Errorf("load heads again: %w", err)
	}
	var renewals []history.Renewal
	behind := which[:0]
	for n, i := range which {
		heads[i] = found[n]
		if h := &heads[i]; below(i) {
			renewals = append(renewals, history.Renewal{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Floor: shown[i].Epoch})
			behind = append(behind, i)
		}
	}
	if len(renewals) == 0 {
		return nil
	}
	return r.renew(ctx, renewals, behind, queries, heads)
}

func (r *Renewer) renew(ctx context.Context, renewals []history.Renewal, which []int, queries []history.HeadQuery, heads []history.Head) error {
	r.behind.Add(float64(len(renewals)))
	rows, err := r.store.Renew(ctx, renewals)
	if err != nil {
		return fmt.Errorf("begin new epochs: %w", err)
	}
	for n, i := range which {
		switch {
		case rows[n].Epoch <= renewals[n].Floor:
			return errMoved
		case len(queries[i].Keys) > 0 && rows[n].Offset != heads[i].Offset:
			return errMoved // another was faster, and has appended: keys must be looked up again
		}
		heads[i].Epoch, heads[i].Offset = rows[n].Epoch, rows[n].Offset
	}
	r.renewed.Add(float64(len(renewals)))
	first := renewals[0]
	r.log.Warn("the store has less than it has shown: channels begin new epochs", "channels", len(renewals),
		"first", first.Channel, "head", first.Head, "epoch", first.Epoch, "seen_epoch", first.Floor, "new_epoch", heads[which[0]].Epoch)
	return nil
}
