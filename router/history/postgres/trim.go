package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

const (
	trimPage  = 1_000 // channels looked at, and at most cut, in one statement
	trimChunk = 5_000 // the most rows that one statement deletes
	trimEach  = 100   // of them, of one channel
)

const (
	// cutSQL deletes for each channel at most the oldest $6 events: those up to
	// the floor ($4), and from there those before the first young enough ($5).
	cutSQL = `
DELETE FROM history_events e
USING (
	SELECT d.id, d.epoch, d.first, LEAST(d.first + $6::bigint - 1, GREATEST(d.floor, y.floor)) AS floor
	FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
		AS d (id, epoch, first, floor, cutoff_ms)
	CROSS JOIN LATERAL (
		SELECT coalesce(min(o."offset") - 1, d.first + $6::bigint - 1) AS floor
		FROM history_events o
		WHERE o.channel_id = d.id AND o.epoch = d.epoch
			AND o."offset" > d.floor AND o."offset" < d.first + $6::bigint AND o.time_ms >= d.cutoff_ms
	) y
) d
WHERE e.channel_id = d.id AND d.id = d.id + 0 AND e.epoch = d.epoch AND e."offset" >= d.first AND e."offset" <= d.floor`

	cutKeysSQL = `
DELETE FROM history_keys
WHERE (channel_id, epoch, scope, key) IN (
	SELECT channel_id, epoch, scope, key FROM history_keys
	WHERE time_ms < $1 ORDER BY time_ms LIMIT $2
)`
)

// cut is the way that one rule goes through one channel.
type cut struct {
	id, epoch int64
	first     int64 // oldest offset still there
	floor     int64 // by size: everything up to here goes
	cutoffMS  int64 // by age: everything older goes; the least number without a TTL
}

// Trim implements history.Store. It goes through the channels whose look is due,
// page by page; each statement is a short transaction of its own, and none waits
// for a lock on a channel.
func (s *Store) Trim(ctx context.Context, rules []history.Retention, keyWindow time.Duration, limit int) (int, error) {
	if err := history.CheckTrim(rules, limit); err != nil {
		return 0, err
	}
	if err := s.enter(ctx); err != nil {
		return 0, fmt.Errorf("trim history: %w", err)
	}
	defer s.gate.Leave()
	gone, err := s.trimEvents(ctx, rules, limit)
	if err == nil && keyWindow > 0 && gone < limit {
		var keys int
		keys, err = s.trimKeys(ctx, s.cfg.Now().Add(-keyWindow).UnixMilli(), limit-gone)
		gone += keys
	}
	if err != nil {
		return gone, fmt.Errorf("trim history: %w", s.failed(ctx, err))
	}
	return gone, nil
}

// trimEvents puts a page of a changed namespace on the list, does what is due,
// and so on until both are done, or half of the time that ctx allows is over: a
// new rule of a million channels is work of minutes, and no error.
func (s *Store) trimEvents(ctx context.Context, rules []history.Retention, limit int) (int, error) {
	r, err := s.agreeOnRules(ctx, rules)
	gone, enough := 0, halfOf(ctx)
	for more := true; err == nil && more && gone < limit && !enough(); {
		if more, err = s.walk(ctx, r); err != nil {
			break
		}
		var n int
		n, err = s.trimDue(ctx, r, limit-gone, enough)
		gone += n
	}
	return gone, err
}

// halfOf tells when half of the time that ctx allows from now on is over.
func halfOf(ctx context.Context) (over func() bool) {
	began := time.Now()
	deadline, bounded := ctx.Deadline()
	return func() bool { return bounded && time.Since(began) > time.Until(deadline) }
}

// trimDue looks at the channels whose time has come, and cuts what must go. What
// was cut is looked at again: only then it is known when the next look is due. A
// page is small beside the limit, since most channels lose more than one event.
func (s *Store) trimDue(ctx context.Context, r *rules, limit int, enough func() bool) (int, error) {
	now := s.cfg.Now()
	gone := 0
	for gone < limit && !enough() {
		page, err := s.due(ctx, now, min(trimPage, max(trimPage/64, limit/4)))
		if err != nil || len(page) == 0 {
			return gone, err
		}
		if cuts := r.cuts(page, now); len(cuts) > 0 {
			n, err := s.cutAll(ctx, cuts, limit-gone)
			gone += n
			if err != nil {
				return gone, err
			}
			if page, err = s.lookAgain(ctx, page); err != nil {
				return gone, err
			}
		}
		scheduled, err := s.schedule(ctx, r.next(page, now), now)
		if err != nil || scheduled == 0 { // all are being appended to: the next round
			return gone, err
		}
	}
	return gone, nil
}

// cutAll cuts some channels to the end, then the next: what is done is scheduled
// even if the limit ends the others.
func (s *Store) cutAll(ctx context.Context, cuts []cut, limit int) (int, error) {
	gone := 0
	for len(cuts) > 0 && gone < limit {
		budget := min(limit-gone, trimChunk)
		each := min(budget, trimEach)
		now := cuts[:min(len(cuts), budget/each)]
		n, err := s.cutSome(ctx, now, int64(each))
		gone += n
		if err != nil {
			return gone, err
		}
		if n < each { // not one of them was cut to the full
			cuts = cuts[len(now):]
			continue
		}
		for i := range now {
			now[i].first += int64(each)
		}
	}
	return gone, nil
}

func (s *Store) cutSome(ctx context.Context, cuts []cut, each int64) (int, error) {
	var ids, epochs, firsts, floors, cutoffs []int64
	for _, c := range cuts {
		ids = append(ids, c.id)
		epochs = append(epochs, c.epoch)
		firsts = append(firsts, c.first)
		floors = append(floors, c.floor)
		cutoffs = append(cutoffs, c.cutoffMS)
	}
	tag, err := s.exec(ctx, cutSQL, ids, epochs, firsts, floors, cutoffs, each)
	return int(tag.RowsAffected()), err
}

func (s *Store) trimKeys(ctx context.Context, cutoffMS int64, limit int) (int, error) {
	gone := 0
	for gone < limit {
		budget := min(limit-gone, trimChunk)
		tag, err := s.exec(ctx, cutKeysSQL, cutoffMS, budget)
		gone += int(tag.RowsAffected())
		if err != nil || tag.RowsAffected() < int64(budget) {
			return gone, err
		}
	}
	return gone, nil
}

// cuts are the channels of a page of which something must go.
func (r *rules) cuts(page []look, now time.Time) []cut {
	var cuts []cut
	for _, l := range page {
		rule, ok := r.of(l.channel)
		if !ok || l.first == 0 {
			continue
		}
		c := cut{id: l.id, epoch: l.epoch, first: l.first, cutoffMS: math.MinInt64}
		if rule.Size > 0 {
			c.floor = l.head - int64(rule.Size)
		}
		if rule.TTL > 0 {
			c.cutoffMS = now.Add(-rule.TTL).UnixMilli()
		}
		if c.first <= c.floor || l.timeMS < c.cutoffMS {
			cuts = append(cuts, c)
		}
	}
	return cuts
}
