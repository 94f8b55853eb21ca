package backfill

import (
	"context"
	"errors"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

var (
	errStale   = errors.New("the store gave an old answer")
	errRowGone = errors.New("a channel's row is gone again")
)

// answered is what a flight found.
type answered struct {
	channel.ReadResult
	err error
}

// read reads for some flights: heads and events in one call, and rows for channels
// that no one has asked for before in another.
func (b *Backfill) read(ctx context.Context, flights []*flight) {
	b.metrics.running.Inc()
	defer b.metrics.running.Dec()
	b.metrics.ranges.Observe(float64(len(flights)))
	running := int64(len(b.slots))
	for peak := b.peak.Load(); running > peak && !b.peak.CompareAndSwap(peak, running); {
		peak = b.peak.Load()
	}
	var last time.Time
	for _, f := range flights {
		if d := f.deadline(); d.After(last) {
			last = d
		}
	}
	ctx, cancel := context.WithDeadline(ctx, last)
	defer cancel()
	began := time.Now()
	results := make([]answered, len(flights))
	if missing := b.pages(ctx, flights, results); len(missing) > 0 {
		b.create(ctx, flights, missing, results)
	}
	b.renew(ctx, flights, results)
	b.mu.Lock()
	b.learn(time.Since(began), ctx.Err() != nil)
	for _, f := range flights {
		b.queue.back(f.key)
	}
	b.mu.Unlock()
	for i, f := range flights {
		res := results[i].ReadResult
		switch {
		case errors.Is(results[i].err, context.Canceled):
			res = channel.ReadResult{Err: channel.ReadBusy}
		case results[i].err != nil:
			res = channel.ReadResult{Err: channel.ReadFailed}
		}
		b.land(f, res)
	}
}

// storeRange is a key as the store takes it. A head is read as a page behind all
// offsets: one call for everything, and on the connections of readers, not on those
// that publishes need.
func storeRange(k *channel.ReadKey) history.Range {
	if k.Head {
		return history.Range{Channel: k.Channel, After: wire.MaxOffset, Limit: 1}
	}
	return history.Range{
		Channel: k.Channel, After: k.After, Before: k.Before, Reverse: k.Reverse, Limit: k.Limit, MaxBytes: k.MaxBytes,
	}
}

// pages asks for all; it returns the flights whose channel has no row.
func (b *Backfill) pages(ctx context.Context, flights []*flight, results []answered) (missing []int) {
	queries := make([]history.Range, len(flights))
	for i, f := range flights {
		queries[i] = storeRange(&f.key)
	}
	pages, err := b.store.Read(ctx, queries)
	for i := range flights {
		switch {
		case err != nil:
			results[i].err = err
		case !pages[i].Exists:
			missing = append(missing, i)
		default:
			p := &pages[i]
			results[i].ReadResult = channel.ReadResult{
				Epoch: p.Epoch, Head: p.Head, Floor: p.First, Events: channel.BusEvents(p.Events), More: p.More,
			}
		}
	}
	return missing
}

// create makes rows, so that a channel has an epoch before its first event. What was
// published since the first look is read once more: it is not history that is gone.
func (b *Backfill) create(ctx context.Context, flights []*flight, missing []int, results []answered) {
	at := make(map[string]int, len(missing)) // Heads wants distinct channels
	var queries []history.HeadQuery
	for _, i := range missing {
		name := flights[i].key.Channel
		if _, ok := at[name]; !ok {
			at[name] = len(queries)
			queries = append(queries, history.HeadQuery{Channel: name})
		}
	}
	found, err := b.store.Heads(ctx, queries)
	var again []*flight
	var of []int
	for _, i := range missing {
		if err != nil {
			results[i].err = err
			continue
		}
		h := &found[at[flights[i].key.Channel]]
		results[i].ReadResult = channel.ReadResult{Epoch: h.Epoch, Head: h.Offset, Floor: h.Offset + 1}
		if h.Offset > 0 {
			again, of = append(again, flights[i]), append(of, i)
		}
	}
	if len(again) == 0 {
		return
	}
	second := make([]answered, len(again))
	for _, i := range b.pages(ctx, again, second) {
		second[i].err = errRowGone
	}
	for i, res := range second {
		results[of[i]] = res
	}
}

// renew begins new epochs for channels of which less was read than was shown before:
// also if they are another's, since the row is the fence, and who has a tail that the
// store has lost would else tell it. For what edges alone say only in channels that are
// ours, and not too often (channel.Mark). Results that turn out to be old become errors.
func (b *Backfill) renew(ctx context.Context, flights []*flight, results []answered) {
	at := make(map[string]int) // Heads wants distinct channels
	var queries []history.HeadQuery
	var heads []history.Head
	var shown []channel.Position
	var which []int
	for i, f := range flights {
		res := &results[i]
		read := channel.Position{Epoch: res.Epoch, Offset: res.Head}
		mark := &f.last().Mark
		seen := f.shown().Max(f.seen())
		if res.err != nil || !mark.Here || !seen.Above(read) {
			continue
		}
		if !f.shown().Above(read) && !mark.Claims {
			if mark.Kept {
				b.metrics.claimsRefused.Inc()
			}
			continue
		}
		which = append(which, i)
		n, ok := at[f.key.Channel]
		if !ok {
			at[f.key.Channel] = len(queries)
			queries = append(queries, history.HeadQuery{Channel: f.key.Channel})
			heads, shown = append(heads, history.Head{Channel: f.key.Channel, Epoch: res.Epoch, Offset: res.Head}), append(shown, seen)
			continue
		}
		shown[n] = shown[n].Max(seen)
	}
	if len(which) == 0 {
		return
	}
	err := b.renewer.Check(ctx, queries, heads, shown)
	for _, i := range which {
		h, res := &heads[at[flights[i].key.Channel]], &results[i]
		switch {
		case err != nil:
			res.err = err
		case h.Offset != res.Head || h.Epoch == res.Epoch:
			res.err = errStale // what was read is not up to the head
		default:
			res.Claimed = !flights[i].shown().Above(channel.Position{Epoch: res.Epoch, Offset: res.Head})
			res.Epoch = h.Epoch
		}
	}
}
