package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// An idle channel has no events; its look says since when nobody has used it. While
// it is idle look_at equals head (scheduleSQL, or a new row), so that an append moves
// it and takes the look over: a row with another look_at is not idle any more,
// whatever its look says.

const (
	// idleSQL is what may go, and what a clock that was ahead has noted.
	idleSQL = `
SELECT l.channel, l.early, coalesce(c.id, 0), coalesce(GREATEST(c.epoch, c.renewed), 0), coalesce(c.head, 0),
	coalesce(c.look_at = c.head, false)
	AND NOT EXISTS (SELECT FROM history_events WHERE channel_id = c.id AND epoch = c.epoch)
	AND NOT EXISTS (SELECT FROM history_keys WHERE channel_id = c.id AND epoch = c.epoch) AS empty
FROM (
	(SELECT channel, false AS early FROM history_looks WHERE idle_ms <= $1 ORDER BY idle_ms LIMIT $3)
	UNION ALL
	(SELECT channel, true FROM history_looks WHERE idle_ms > $2 ORDER BY idle_ms LIMIT $3)
) l
LEFT JOIN history_channels c ON c.channel = l.channel
WHERE l.channel = l.channel || ''`

	// forgetSQL compares the rows again under their locks, and passes over those that
	// others hold. What is unchanged has no events either: they would have moved it.
	forgetSQL = `
WITH idle AS (
	SELECT c.channel
	FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS q (channel, id, epoch, head)
	JOIN history_channels c ON c.channel = q.channel AND c.id = q.id
	JOIN history_looks l ON l.channel = q.channel
	WHERE GREATEST(c.epoch, c.renewed) = q.epoch AND c.head = q.head AND c.look_at = c.head AND l.idle_ms <= $5
		AND q.head = q.head + 0
	FOR UPDATE OF c SKIP LOCKED
), gone AS (
	DELETE FROM history_channels c USING idle i WHERE c.channel = i.channel
	RETURNING c.channel
), unlisted AS (
	DELETE FROM history_looks l USING gone g WHERE l.channel = g.channel
)
SELECT count(*) FROM gone`

	// keepSQL waits for no writer of these looks. What is new enough stays as it is.
	keepSQL = `
WITH free AS (
	SELECT channel FROM history_looks
	WHERE channel = ANY ($1::text[]) AND (idle_ms < $2::bigint - $3::bigint OR idle_ms > $2::bigint + $3::bigint)
	FOR UPDATE SKIP LOCKED
)
UPDATE history_looks l SET idle_ms = $2::bigint FROM free f WHERE l.channel = f.channel`
)

// idlers are a page of idle channels.
type idlers struct {
	channels           []string // that may go
	ids, epochs, heads []int64
	orphans            []string // have no row any more
	used               []string // have to stay, or were noted by a clock that was ahead
}

// Forget implements history.Store. It looks at the channels that have been idle
// for long enough, and at no other.
func (s *Store) Forget(ctx context.Context, idle time.Duration, limit int) (int, error) {
	if err := history.CheckForget(idle, limit); err != nil {
		return 0, err
	}
	if err := s.enter(ctx); err != nil {
		return 0, fmt.Errorf("forget channels: %w", err)
	}
	defer s.gate.Leave()
	now := s.cfg.Now()
	gone, moved := 0, true
	var err error
	for err == nil && moved && gone < limit {
		var n int
		n, moved, err = s.forgetPage(ctx, now, now.Add(-idle).UnixMilli(), min(limit-gone, trimPage))
		gone += n
	}
	if err != nil {
		return gone, fmt.Errorf("forget channels: %w", s.failed(ctx, err))
	}
	return gone, nil
}

// forgetPage tells how many rows went, and whether another page may be different.
func (s *Store) forgetPage(ctx context.Context, now time.Time, cutoffMS int64, most int) (gone int, moved bool, err error) {
	var page *idlers
	err = again(ctx, func() (err error) {
		page, err = s.idlers(ctx, cutoffMS, now.Add(history.KeepSlack).UnixMilli(), most)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	if len(page.channels) > 0 {
		gone, err = s.forget(ctx, page, cutoffMS)
	}
	stayed := 0
	if err == nil && len(page.used) > 0 {
		stayed, err = s.keep(ctx, page.used, now, 0)
	}
	if err == nil && len(page.orphans) > 0 {
		var orphans int
		orphans, err = s.forgetOrphans(ctx, page.orphans)
		stayed += orphans
	}
	return gone, gone+stayed > 0, err
}

func (s *Store) idlers(ctx context.Context, cutoffMS, earlyMS int64, most int) (*idlers, error) {
	rows, err := s.writing.Query(ctx, idleSQL, cutoffMS, earlyMS, most)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	page := new(idlers)
	for rows.Next() {
		var channel string
		var id, epoch, head int64
		var early, empty bool
		if err := rows.Scan(&channel, &early, &id, &epoch, &head, &empty); err != nil {
			return nil, err
		}
		switch {
		case id == 0:
			page.orphans = append(page.orphans, channel)
		case early || !empty || epoch > history.MaxForgotten:
			page.used = append(page.used, channel)
		default:
			page.channels = append(page.channels, channel)
			page.ids = append(page.ids, id)
			page.epochs = append(page.epochs, epoch)
			page.heads = append(page.heads, head)
		}
	}
	return page, rows.Err()
}

// forget lets no epoch be given again: the sequence is above it before a row goes.
func (s *Store) forget(ctx context.Context, page *idlers, cutoffMS int64) (gone int, err error) {
	err = again(ctx, func() error { return s.raise(ctx, slices.Max(page.epochs)) })
	if err != nil {
		return 0, err
	}
	err = again(ctx, func() error {
		return s.writing.QueryRow(ctx, forgetSQL, page.channels, page.ids, page.epochs, page.heads, cutoffMS).Scan(&gone)
	})
	return gone, err
}

// Keep implements history.Store.
func (s *Store) Keep(ctx context.Context, channels []string) error {
	if err := s.enter(ctx); err != nil {
		return fmt.Errorf("keep channels: %w", err)
	}
	defer s.gate.Leave()
	if _, err := s.keep(ctx, channels, s.cfg.Now(), history.KeepSlack); err != nil {
		return fmt.Errorf("keep channels: %w", s.failed(ctx, err))
	}
	return nil
}

func (s *Store) keep(ctx context.Context, channels []string, now time.Time, slack time.Duration) (int, error) {
	tag, err := s.exec(ctx, keepSQL, channels, now.UnixMilli(), slack.Milliseconds())
	return int(tag.RowsAffected()), err
}

func (s *Store) forgetOrphans(ctx context.Context, channels []string) (int, error) {
	tag, err := s.exec(ctx, orphansSQL, channels)
	return int(tag.RowsAffected()), err
}
