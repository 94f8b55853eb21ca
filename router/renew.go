package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// claimEvery is how often a channel gets a new epoch for what an edge alone says.
const claimEvery = time.Minute

// maxClaim bounds the epochs that edges may claim, far below the last one: a
// renewal must leave room above itself.
const maxClaim = history.MaxEpoch / 2

var (
	errStale = errors.New("the store gave an old answer")
	errMoved = errors.New("the channel's row moves while it is renewed")
)

// point is an epoch with an offset in it; positions of a channel are ordered.
type point struct{ epoch, offset uint64 }

func (p point) above(q point) bool {
	return p.epoch > q.epoch || p.epoch == q.epoch && p.offset > q.offset
}

func (p point) max(q point) point {
	if q.above(p) {
		return q
	}
	return p
}

// renewer begins new epochs where the store has less than it has shown: it was
// restored, or a replica without the newest commits took over. Offsets would be
// given twice in one epoch, and whoever saw the first would miss the second.
//
// What counts is what was shown before the store was read, and it is read twice,
// from the primary; the row is compared once more when it is renewed. So
// neither a commit that overtakes a read nor one stale answer renews anything.
// It has no goroutine: committers and reads call it.
type renewer struct {
	store   history.Store
	metrics *metrics
	log     *slog.Logger
}

// check corrects heads that are below what had been shown before they were read:
// by a second look, or by a new epoch. An error leaves heads unusable.
func (r *renewer) check(ctx context.Context, queries []history.HeadQuery, heads []history.Head, shown []point) error {
	var again []history.HeadQuery
	var which []int
	for i := range heads {
		if shown[i].above(point{heads[i].Epoch, heads[i].Offset}) {
			again, which = append(again, queries[i]), append(which, i)
		}
	}
	if len(again) == 0 {
		return nil
	}
	r.metrics.storeCalls.heads.Inc()
	found, err := r.store.Heads(ctx, again)
	if err != nil {
		return fmt.Errorf("load heads again: %w", err)
	}
	var renewals []history.Renewal
	behind := which[:0]
	for n, i := range which {
		heads[i] = found[n]
		h := &heads[i]
		if shown[i].above(point{h.Epoch, h.Offset}) {
			renewals = append(renewals, history.Renewal{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Floor: shown[i].epoch})
			behind = append(behind, i)
		}
	}
	if len(renewals) == 0 {
		return nil
	}
	return r.renew(ctx, renewals, behind, queries, heads)
}

func (r *renewer) renew(ctx context.Context, renewals []history.Renewal, which []int, queries []history.HeadQuery, heads []history.Head) error {
	r.metrics.storeBehind.Add(float64(len(renewals)))
	r.metrics.storeCalls.renew.Inc()
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
	r.metrics.renewed.Add(float64(len(renewals)))
	first := renewals[0]
	r.log.Warn("the store has less than it has shown: channels begin new epochs", "channels", len(renewals),
		"first", first.Channel, "head", first.Head, "epoch", first.Epoch, "seen_epoch", first.Floor, "new_epoch", heads[which[0]].Epoch)
	return nil
}

// claim is what an edge has seen of a channel, if it can be.
func claim(epoch, offset uint64) point {
	if epoch > maxClaim {
		return point{}
	}
	return point{epoch, offset}
}

// seen is the highest that the edges of a flight have seen.
func (f *flight) seen() point {
	var most point
	for _, w := range f.waiters {
		most = most.max(w.seen)
	}
	return most
}

// renew begins new epochs for channels of which less was read than was shown before:
// also if they are another's, since the row is the fence, and who has a tail that the
// store has lost would else tell it. For what edges alone say only in channels that are
// ours. Results that turn out to be old become errors.
func (r *reads) renew(ctx context.Context, flights []*flight, marks []mark, results []readResult) {
	at := make(map[string]int) // Heads wants distinct channels
	var queries []history.HeadQuery
	var heads []history.Head
	var shown []point
	var which []int
	for i, f := range flights {
		res := &results[i]
		seen := marks[i].shown.max(f.seen())
		if res.err != nil || marks[i].ch == nil || !seen.above(point{res.epoch, res.head}) || !r.credible(f, &marks[i], res) {
			continue
		}
		which = append(which, i)
		n, ok := at[f.key.channel]
		if !ok {
			at[f.key.channel] = len(queries)
			queries = append(queries, history.HeadQuery{Channel: f.key.channel})
			heads, shown = append(heads, history.Head{Channel: f.key.channel, Epoch: res.epoch, Offset: res.head}), append(shown, seen)
			continue
		}
		shown[n] = shown[n].max(seen)
	}
	if len(which) == 0 {
		return
	}
	err := r.renewer.check(ctx, queries, heads, shown)
	for _, i := range which {
		h, res := &heads[at[flights[i].key.channel]], &results[i]
		switch {
		case err != nil:
			res.err = err
		case h.Offset != res.head || h.Epoch == res.epoch:
			res.err = errStale // what was read is not up to the head
		default:
			if !marks[i].shown.above(point{res.epoch, res.head}) {
				r.claimed(marks[i].ch)
			}
			res.epoch = h.Epoch
		}
	}
}

func (r *reads) claimed(ch *channel) {
	ch.shard.mu.Lock()
	defer ch.shard.mu.Unlock()
	ch.claimed = time.Now()
}

// credible limits what an edge can bring about alone: one new epoch a minute, at the owner.
func (r *reads) credible(f *flight, m *mark, res *readResult) bool {
	if m.shown.above(point{res.epoch, res.head}) {
		return true
	}
	if !m.ours {
		return false
	}
	m.ch.shard.mu.Lock()
	defer m.ch.shard.mu.Unlock()
	if time.Since(m.ch.claimed) < claimEvery {
		r.metrics.claimsRefused.Inc()
		return false
	}
	return true
}
