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
	trimChunk = 5_000 // about the most rows that one statement deletes
)

const (
	// agedSQL is a page of channels with their oldest events. A sub-select
	// without events gives NULLs: the channel still moves the page on.
	agedSQL = `
SELECT c.channel, c.id, c.epoch, c.head, coalesce(f."offset", 0), coalesce(f.time_ms, 0)
FROM (
	SELECT channel, id, epoch, head FROM history_channels
	WHERE channel > $1 ORDER BY channel LIMIT $2
) c
LEFT JOIN LATERAL (
	SELECT "offset", time_ms FROM history_events
	WHERE channel_id = c.id AND epoch = c.epoch
	ORDER BY "offset" LIMIT 1
) f ON true
ORDER BY c.channel`

	// cutSQL deletes for each channel at most the oldest $6 events: those up to
	// the floor ($4), and from there those before the first young enough ($5).
	cutSQL = `
DELETE FROM history_events e
USING (
	SELECT d.id, d.epoch, LEAST(d.first + $6::bigint - 1, GREATEST(d.floor, y.floor)) AS floor
	FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
		AS d (id, epoch, first, floor, cutoff_ms)
	CROSS JOIN LATERAL (
		SELECT coalesce(min(o."offset") - 1, d.first + $6::bigint - 1) AS floor
		FROM history_events o
		WHERE o.channel_id = d.id AND o.epoch = d.epoch
			AND o."offset" > d.floor AND o."offset" < d.first + $6::bigint AND o.time_ms >= d.cutoff_ms
	) y
) d
WHERE e.channel_id = d.id AND e.epoch = d.epoch AND e."offset" <= d.floor`

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

// Trim implements history.Store. It looks at the oldest event of every channel,
// page by page; each delete is a short transaction of its own.
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

func (s *Store) trimEvents(ctx context.Context, rules []history.Retention, limit int) (int, error) {
	byNamespace := make(map[string]history.Retention, len(rules))
	for _, rule := range rules {
		byNamespace[rule.Namespace] = rule
	}
	now := s.cfg.Now()
	gone, after := 0, ""
	for gone < limit {
		page, err := s.agedPage(ctx, after)
		if err != nil {
			return gone, err
		}
		n, err := s.cutAll(ctx, due(page, byNamespace, now), limit-gone)
		gone += n
		if err != nil || len(page) < trimPage {
			return gone, err
		}
		after = page[len(page)-1].channel
	}
	return gone, nil
}

// aged is a channel with its oldest event; first is 0 if it has none.
type aged struct {
	channel         string
	id, epoch, head int64
	first, timeMS   int64
}

func (s *Store) agedPage(ctx context.Context, after string) ([]aged, error) {
	rows, err := s.writing.Query(ctx, agedSQL, after, trimPage)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	page := make([]aged, 0, trimPage)
	for rows.Next() {
		var a aged
		if err := rows.Scan(&a.channel, &a.id, &a.epoch, &a.head, &a.first, &a.timeMS); err != nil {
			return nil, err
		}
		page = append(page, a)
	}
	return page, rows.Err()
}

// due are the channels whose oldest event must go.
func due(page []aged, rules map[string]history.Retention, now time.Time) []cut {
	var cuts []cut
	for _, a := range page {
		rule, ok := rules[history.Namespace(a.channel)]
		if !ok || a.first == 0 {
			continue
		}
		c := cut{id: a.id, epoch: a.epoch, first: a.first, cutoffMS: math.MinInt64}
		if rule.Size > 0 {
			c.floor = a.head - int64(rule.Size)
		}
		if rule.TTL > 0 {
			c.cutoffMS = now.Add(-rule.TTL).UnixMilli()
		}
		if c.first <= c.floor || a.timeMS < c.cutoffMS {
			cuts = append(cuts, c)
		}
	}
	return cuts
}

// cutAll cuts all channels of a page a little, again and again, until none of
// them has lost as much as it might have.
func (s *Store) cutAll(ctx context.Context, cuts []cut, limit int) (int, error) {
	gone := 0
	for len(cuts) > 0 && gone < limit {
		budget := min(limit-gone, trimChunk)
		now := cuts[:min(len(cuts), budget)]
		each := int64(budget / len(now))
		n, err := s.cutSome(ctx, now, each)
		gone += n
		if err != nil {
			return gone, err
		}
		if int64(n) < each { // not one of them was cut to the full
			cuts = cuts[len(now):]
			continue
		}
		for i := range now {
			now[i].first += each
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
	tag, err := s.writing.Exec(ctx, cutSQL, ids, epochs, firsts, floors, cutoffs, each)
	return int(tag.RowsAffected()), err
}

func (s *Store) trimKeys(ctx context.Context, cutoffMS int64, limit int) (int, error) {
	gone := 0
	for gone < limit {
		budget := min(limit-gone, trimChunk)
		tag, err := s.writing.Exec(ctx, cutKeysSQL, cutoffMS, budget)
		gone += int(tag.RowsAffected())
		if err != nil || tag.RowsAffected() < int64(budget) {
			return gone, err
		}
	}
	return gone, nil
}
