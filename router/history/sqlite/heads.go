package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// Heads implements history.Store. Rows that exist are read by a reader, which
// sees every commit that came before; only missing ones take the writer.
func (s *Store) Heads(ctx context.Context, queries []history.HeadQuery) ([]history.Head, error) {
	heads := make([]history.Head, len(queries))
	var missing []int
	err := s.read(ctx, func(r *reader) error {
		for i, q := range queries {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			found, err := r.readHead(q, &heads[i])
			if err != nil {
				return err
			}
			if !found {
				missing = append(missing, i)
			}
		}
		return nil
	})
	if err == nil && len(missing) > 0 {
		err = s.createAll(ctx, queries, heads, missing)
	}
	if err != nil {
		return nil, fmt.Errorf("load history heads: %w", err)
	}
	return heads, nil
}

// createAll makes the missing rows and reads them all again, in one transaction:
// another writer may have made some of them meanwhile, and appended.
func (s *Store) createAll(ctx context.Context, queries []history.HeadQuery, heads []history.Head, missing []int) error {
	return s.write(ctx, func(w *writer) error {
		for n, i := range missing {
			if n%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			found, err := w.readHead(queries[i], &heads[i])
			if err != nil {
				return err
			}
			if found {
				continue
			}
			var epoch int64
			if err := w.epoch.QueryRow().Scan(&epoch); err != nil {
				return err
			}
			if _, err := w.create.Exec(queries[i].Channel, epoch); err != nil {
				return err
			}
			heads[i] = history.Head{Channel: queries[i].Channel, Epoch: uint64(epoch)}
		}
		return nil
	})
}

// readHead fills head if the channel has a row.
func (r *reader) readHead(q history.HeadQuery, head *history.Head) (bool, error) {
	row, err := r.row(q.Channel)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	*head = history.Head{Channel: q.Channel, Epoch: uint64(row.shown), Offset: uint64(row.head)}
	for _, key := range q.Keys {
		var offset int64
		err := r.repeat.QueryRow(row.id, row.epoch, key.Scope, key.Key).Scan(&offset)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return false, err
		}
		if head.Repeats == nil {
			head.Repeats = make(map[history.Key]uint64)
		}
		head.Repeats[key] = uint64(offset)
	}
	return true, nil
}
