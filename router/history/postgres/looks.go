package postgres

import (
	"context"
	"fmt"
	"time"
)

// Retention looks at a channel only when something may have to go: it grew past
// its size, its oldest event is too old, it was empty, or the rule of its
// namespace changed. history_looks lists these channels by the time that they
// are due; the row of a channel tells from which head on an append puts it
// there (look_at). So a round costs what must be done, not what there is.
//
// Whoever writes a channel's look has locked the channel's row before: that
// orders an append, which must not be overlooked, and the settling of a look. (Only
// the note of a use does not, and waits for nobody.) A channel without events stays
// on the list, as idle (forget.go).

// never is due_ms of a look that age does not cause, and look_at of a channel
// that may grow for ever: below the marks of append, beyond every head and time.
const never = 1 << 61

const (
	// A sub-select without events gives NULLs: the channel still is scheduled. What
	// has no row any more is told with id 0.
	lookSQL = `
SELECT l.channel, coalesce(c.id, 0), coalesce(c.epoch, 0), coalesce(c.head, 0), coalesce(f."offset", 0), coalesce(f.time_ms, 0)
FROM (%s) l
LEFT JOIN history_channels c ON c.channel = l.channel
LEFT JOIN LATERAL (
	SELECT "offset", time_ms FROM history_events
	WHERE channel_id = c.id AND epoch = c.epoch
	ORDER BY "offset" LIMIT 1
) f ON true
WHERE l.channel = l.channel || ''`
	dueSQL   = `SELECT channel FROM history_looks WHERE due_ms <= $1 ORDER BY due_ms, channel LIMIT $2`
	againSQL = `SELECT channel FROM unnest($1::text[]) AS q (channel)`

	// scheduleSQL says when the next look is due. It passes over channels that are
	// being appended to, and so waits for nobody while it holds rows that appends
	// may wait for. Who grew past look_at since it was looked at stays due, or is
	// due again: another router may have looked later and scheduled before. A channel
	// is idle from the first look that found it empty.
	scheduleSQL = `
WITH free AS (
	SELECT c.channel, s.look_at, CASE WHEN c.head > s.look_at THEN $5::bigint ELSE s.due_ms END AS due_ms,
		CASE WHEN s.idle AND c.head <= s.look_at THEN $5::bigint END AS idle_ms
	FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $7::boolean[]) AS s (channel, id, look_at, due_ms, idle)
	JOIN history_channels c ON c.channel = s.channel AND c.id = s.id AND s.id = s.id + 0
	FOR UPDATE OF c SKIP LOCKED
), scheduled AS (
	UPDATE history_channels c
	SET look_at = CASE WHEN c.head > f.look_at THEN c.head + 4611686018427387904 ELSE f.look_at END
	FROM free f WHERE c.channel = f.channel
), forgotten AS (
	DELETE FROM history_looks l USING free f WHERE l.channel = f.channel AND f.due_ms = $6::bigint AND f.idle_ms IS NULL
), listed AS (
	INSERT INTO history_looks (channel, due_ms, idle_ms)
	SELECT f.channel, f.due_ms, f.idle_ms FROM free f WHERE f.due_ms <> $6::bigint OR f.idle_ms IS NOT NULL
	ON CONFLICT (channel) DO UPDATE SET due_ms = excluded.due_ms,
		idle_ms = CASE WHEN excluded.idle_ms IS NOT NULL THEN coalesce(history_looks.idle_ms, excluded.idle_ms) END
)
SELECT count(*) FROM free`

	orphansSQL = `
DELETE FROM history_looks l
WHERE l.channel = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM history_channels c WHERE c.channel = l.channel)`
)

var (
	dueLookSQL   = fmt.Sprintf(lookSQL, dueSQL)
	againLookSQL = fmt.Sprintf(lookSQL, againSQL)
)

// look is a channel with its oldest event; first is 0 if it has none.
type look struct {
	channel         string
	id, epoch, head int64 // id is 0 if the channel has no row any more
	first, timeMS   int64
}

// nextLook is what became of a look.
type nextLook struct {
	channel string
	id      int64
	lookAt  int64 // the head past which the channel is due at once
	dueMS   int64 // when it is due anyway
	idle    bool  // it has no events
}

// next says when the channels of a page are due again; those of which something
// must still go stay as they are. The slack (an eighth of the size, a sixteenth
// of the TTL) makes one look of many: a channel keeps that much more than its
// rule says, but what is looked at is cut exactly.
func (r *rules) next(page []look, now time.Time) []nextLook {
	undone := make(map[int64]bool)
	for _, c := range r.cuts(page, now) {
		undone[c.id] = true
	}
	var plans []nextLook
	for _, l := range page {
		if l.id == 0 || !undone[l.id] {
			plans = append(plans, r.nextOf(l, now))
		}
	}
	return plans
}

func (r *rules) nextOf(l look, now time.Time) nextLook {
	s := nextLook{channel: l.channel, id: l.id, lookAt: never, dueMS: never}
	if l.first == 0 { // its next event begins to count
		s.lookAt, s.idle = l.head, true
		return s
	}
	rule, ok := r.of(l.channel)
	if !ok {
		return s
	}
	if rule.Size > 0 {
		s.lookAt = l.first - 1 + int64(rule.Size) + int64(rule.Size)/8
	}
	if rule.TTL > 0 {
		s.dueMS = max(l.timeMS+rule.TTL.Milliseconds()+1, now.Add(rule.TTL/16).UnixMilli())
	}
	return s
}

// due is a page of the list.
func (s *Store) due(ctx context.Context, now time.Time, most int) ([]look, error) {
	return s.look(ctx, dueLookSQL, now.UnixMilli(), most)
}

// lookAgain reads the channels of a page anew.
func (s *Store) lookAgain(ctx context.Context, page []look) ([]look, error) {
	channels := make([]string, len(page))
	for i := range page {
		channels[i] = page[i].channel
	}
	return s.look(ctx, againLookSQL, channels)
}

func (s *Store) look(ctx context.Context, sql string, args ...any) (page []look, err error) {
	err = again(ctx, func() error {
		page, err = s.lookOnce(ctx, sql, args...)
		return err
	})
	return page, err
}

func (s *Store) lookOnce(ctx context.Context, sql string, args ...any) ([]look, error) {
	rows, err := s.writing.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var page []look
	for rows.Next() {
		var l look
		if err := rows.Scan(&l.channel, &l.id, &l.epoch, &l.head, &l.first, &l.timeMS); err != nil {
			return nil, err
		}
		page = append(page, l)
	}
	return page, rows.Err()
}

// schedule returns how many of the looks are done with.
func (s *Store) schedule(ctx context.Context, plans []nextLook, now time.Time) (int, error) {
	var channels, orphans []string
	var ids, lookAts, dues []int64
	var idles []bool
	for _, n := range plans {
		if n.id == 0 {
			orphans = append(orphans, n.channel)
			continue
		}
		channels = append(channels, n.channel)
		ids = append(ids, n.id)
		lookAts = append(lookAts, n.lookAt)
		dues = append(dues, n.dueMS)
		idles = append(idles, n.idle)
	}
	scheduled := 0
	if len(channels) > 0 {
		err := again(ctx, func() error {
			return s.writing.QueryRow(ctx, scheduleSQL, channels, ids, lookAts, dues, now.UnixMilli(), int64(never), idles).Scan(&scheduled)
		})
		if err != nil {
			return 0, err
		}
	}
	if len(orphans) == 0 {
		return scheduled, nil
	}
	gone, err := s.forgetOrphans(ctx, orphans)
	return scheduled + gone, err
}
