package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/router/history"
)

const (
	// One snapshot for heads and keys: a key stored after the head was read
	// would otherwise be numbered twice.
	headsSQL = `
SELECT q.query, 0::bigint AS key, GREATEST(c.epoch, c.renewed), c.head
FROM unnest((SELECT $1::text[])) WITH ORDINALITY AS q (channel, query)
JOIN history_channels c ON c.channel = q.channel
WHERE q.query = q.query + 0`
	// A look for each key: a server that plans while there are no keys yet would join
	// by channel alone, and keep that plan.
	repeatsSQL = `
UNION ALL
SELECT q.query, q.key_number, GREATEST(c.epoch, c.renewed), k."offset"
FROM unnest((SELECT $2::bigint[]), $3::text[], $4::text[], $5::text[])
	WITH ORDINALITY AS q (query, channel, scope, key, key_number)
JOIN history_channels c ON c.channel = q.channel
CROSS JOIN LATERAL (
	SELECT "offset" FROM history_keys
	WHERE channel_id = c.id AND epoch = c.epoch AND scope = q.scope AND key = q.key
	LIMIT 1
) k
WHERE q.query = q.query + 0`

	// Without a conflict target: whichever constraint says that the row is there. A
	// new channel is idle until something is appended.
	createSQL = `
WITH made AS (
	INSERT INTO history_channels (channel)
	SELECT channel FROM unnest($1::text[]) AS q (channel)
	ON CONFLICT DO NOTHING
	RETURNING channel
)
INSERT INTO history_looks (channel, due_ms, idle_ms)
SELECT channel, $2::bigint, $3::bigint FROM made
ON CONFLICT (channel) DO UPDATE SET due_ms = excluded.due_ms, idle_ms = excluded.idle_ms`
)

// headTries bounds the rounds of Heads. Two suffice, unless rows are removed
// between being made and being read.
const headTries = 3

var errNoRow = errors.New("a channel's row went away while it was loaded")

// Heads implements history.Store.
func (s *Store) Heads(ctx context.Context, queries []history.HeadQuery) ([]history.Head, error) {
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("load history heads: %w", err)
	}
	defer s.gate.Leave()
	heads := make([]history.Head, len(queries))
	missing := make([]int, len(queries))
	for i := range queries {
		missing[i] = i
	}
	for try := 0; len(missing) > 0; try++ {
		var err error
		var left []int
		if try == headTries {
			err = errNoRow
		}
		if err == nil && try > 0 {
			err = s.create(ctx, queries, missing)
		}
		if err == nil {
			err = again(ctx, func() (err error) {
				left, err = s.loadHeads(ctx, queries, missing, heads)
				return err
			})
			missing = left
		}
		if err != nil {
			return nil, fmt.Errorf("load history heads: %w", s.failed(ctx, err))
		}
	}
	return heads, nil
}

// loadHeads fills the heads of the queries numbered in wanted, as far as they
// have rows, and returns the numbers of the others.
func (s *Store) loadHeads(ctx context.Context, queries []history.HeadQuery, wanted []int, heads []history.Head) ([]int, error) {
	sql, args, keys := headArgs(queries, wanted)
	rows, err := s.writing.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make([]bool, len(wanted))
	for rows.Next() {
		var query, key, epoch, offset int64
		if err := rows.Scan(&query, &key, &epoch, &offset); err != nil {
			return nil, err
		}
		found[query-1] = true
		head := &heads[wanted[query-1]]
		head.Channel, head.Epoch = queries[wanted[query-1]].Channel, uint64(epoch)
		if key == 0 {
			head.Offset = uint64(offset)
			continue
		}
		if head.Repeats == nil {
			head.Repeats = make(map[history.Key]uint64)
		}
		head.Repeats[keys[key-1]] = uint64(offset)
	}
	var missing []int
	for n, i := range wanted {
		if !found[n] {
			missing = append(missing, i)
		}
	}
	return missing, rows.Err()
}

func headArgs(queries []history.HeadQuery, wanted []int) (string, []any, []history.Key) {
	channels := make([]string, len(wanted))
	var numbers []int64
	var names, scopes, words []string
	var keys []history.Key
	for n, i := range wanted {
		channels[n] = queries[i].Channel
		for _, key := range queries[i].Keys {
			numbers = append(numbers, int64(n+1))
			names = append(names, queries[i].Channel)
			scopes = append(scopes, key.Scope)
			words = append(words, key.Key)
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return headsSQL, []any{channels}, nil
	}
	return headsSQL + repeatsSQL, []any{channels, numbers, names, scopes, words}, keys
}

// create makes the rows that are not there. Sorted, so that two creators of the
// same channels wait for each other instead of deadlocking.
func (s *Store) create(ctx context.Context, queries []history.HeadQuery, missing []int) error {
	channels := make([]string, len(missing))
	for n, i := range missing {
		channels[n] = queries[i].Channel
	}
	slices.Sort(channels)
	_, err := s.exec(ctx, createSQL, channels, int64(never), s.cfg.Now().UnixMilli())
	return err
}
