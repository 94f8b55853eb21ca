package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/views"
)

// maxRaces is how often a publication may lose the race for its channel.
const maxRaces = 10

// What publishers hear of events that cannot be stored.
var (
	racesLost = channel.Result{Code: codes.Unavailable, RetryAfter: time.Second, Message: "not stored: other routers write to this channel"}
	noOffsets = channel.Result{Code: codes.FailedPrecondition, Message: "the channel has no offsets left"}
)

// piece is some publications of a work, in order, as one run of the store.
type piece struct {
	*work
	pubs []*channel.Publication
}

// append stores pieces, halving them while the store refuses their content.
func (w *Writer) append(ctx context.Context, all []piece) error {
	all, runs := w.number(all)
	if len(runs) == 0 {
		return nil
	}
	timeout, cancel := context.WithTimeout(ctx, w.cfg.StoreTimeout)
	defer cancel()
	look := w.views.Look(time.Now())
	outcomes, err := w.store.Append(timeout, runs)
	var refused *history.RefusedError
	switch {
	case err == nil:
		w.stored(all, runs, outcomes, look.Trust())
		return nil
	case errors.As(err, &refused):
		return w.halve(ctx, all, refused)
	}
	for i := range all {
		w.unknown(&all[i], &runs[i])
	}
	return fmt.Errorf("append: %w", err)
}

// number gives offsets from what is believed; pieces without a position go back.
func (w *Writer) number(all []piece) ([]piece, []history.Run) {
	now := w.cfg.Now().UnixMilli()
	runs := make([]history.Run, 0, len(all))
	kept := all[:0:0]
	for _, p := range all {
		switch {
		case len(p.pubs) == 0:
			continue
		case p.lost:
			p.raceLost(p.pubs)
			continue
		case p.at.Offset > wire.MaxOffset-uint64(len(p.pubs)):
			p.answerAll(p.pubs, noOffsets)
			continue
		}
		run := history.Run{Channel: p.Channel, Epoch: p.at.Epoch, Head: p.at.Offset, Events: make([]history.Event, len(p.pubs))}
		for i, pub := range p.pubs {
			pub.Event.Offset, pub.Event.TimeMS = p.at.Offset+1+uint64(i), now
			run.Events[i] = pub.Event
		}
		runs, kept = append(runs, run), append(kept, p)
	}
	return kept, runs
}

// stored notes what became of runs that the store has looked at.
func (w *Writer) stored(all []piece, runs []history.Run, outcomes []history.Outcome, trust views.Trust) {
	n := 0
	for i, p := range all {
		run := &runs[i]
		n += len(run.Events)
		if outcomes[i] != history.Stored {
			p.lost, p.Lost = true, true
			p.raceLost(p.pubs)
			continue
		}
		p.Parts = append(p.Parts, channel.Part{Epoch: run.Epoch, Head: run.Head, Events: channel.BusEvents(run.Events), Trust: trust})
		p.at = channel.Position{Epoch: run.Epoch, Offset: run.NewHead()}
		for j := range p.pubs {
			p.answerAll(p.pubs[j:j+1], channel.Result{Epoch: run.Epoch, Offset: run.Events[j].Offset})
		}
	}
	w.metrics.batchEvents.Observe(float64(n))
}

// answerAll answers publications, and those that wait behind them as repeats.
func (k *work) answerAll(pubs []*channel.Publication, res channel.Result) {
	for _, p := range pubs {
		k.answer(p, res)
		again := res
		again.Repeat = res.Code == codes.OK
		for _, r := range p.Repeats {
			k.answer(r, again)
		}
		p.Repeats = nil
	}
}

func (k *work) raceLost(pubs []*channel.Publication) {
	for _, p := range channel.Expand(pubs) {
		if p.Races++; p.Races > maxRaces {
			k.answer(p, racesLost)
			continue
		}
		k.Back = append(k.Back, p)
	}
}

// again takes back what is young enough, and tells the others that it was not stored.
func (w *Writer) again(k *work, pubs []*channel.Publication) {
	for _, p := range channel.Expand(pubs) {
		w.retry(k, p)
	}
}

func (w *Writer) retry(k *work, p *channel.Publication) {
	switch {
	case time.Since(p.Since) < w.cfg.RetryFor:
		k.Back = append(k.Back, p)
	case p.Uncertain:
		k.answer(p, channel.UnknownOutcome)
	default:
		k.answer(p, channel.NotStored)
	}
}

// halve finds the event that the store does not take: it fails alone. The left half goes
// first, so that offsets stay dense.
func (w *Writer) halve(ctx context.Context, all []piece, refused *history.RefusedError) error {
	total := 0
	for _, p := range all {
		total += len(p.pubs)
	}
	if total == 1 {
		w.metrics.refused.Inc()
		all[0].answerAll(all[0].pubs, channel.Result{Code: codes.InvalidArgument, Message: refused.Error()})
		return nil
	}
	left, right := split(all, total/2)
	if err := w.append(ctx, left); err != nil {
		for _, p := range right {
			w.again(p.work, p.pubs)
		}
		return err
	}
	return w.append(ctx, right)
}

// split cuts pieces after n events; the one that is cut is in both halves.
func split(all []piece, n int) (left, right []piece) {
	for _, p := range all {
		k := min(n, len(p.pubs))
		n -= k
		if k > 0 {
			left = append(left, piece{p.work, p.pubs[:k]})
		}
		if k < len(p.pubs) {
			right = append(right, piece{p.work, p.pubs[k:]})
		}
	}
	return left, right
}
