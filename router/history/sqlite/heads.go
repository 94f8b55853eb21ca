package sqlite

import (
	"context"
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
			if heads[i], err = w.make(queries[i].Channel); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *writer) make(channel string) (history.Head, error) {
	epoch, err := w.nextEpoch(0)
	if err != nil {
		return history.Head{}, err
	}
	if _, err := w.name.run(channel, epoch); err != nil {
		return history.Head{}, err
	}
	_, err = w.create.run(epoch, history.Namespace(channel), w.now().UnixMilli())
	return history.Head{Channel: channel, Epoch: uint64(epoch)}, err
}

// nextEpoch is the next of the sequence, which goes on above floor.
func (w *writer) nextEpoch(floor int64) (int64, error) {
	row, err := w.epoch.one(floor)
	if err != nil {
		return 0, err
	}
	return row[0].(int64), nil
}

// readHead fills head if the channel has a row.
func (r *reader) readHead(q history.HeadQuery, head *history.Head) (bool, error) {
	c, err := r.head(q.Channel)
	if err != nil || c == nil {
		return false, err
	}
	*head = history.Head{Channel: q.Channel, Epoch: uint64(c.epoch), Offset: uint64(c.head)}
	for _, key := range q.Keys {
		row, err := r.repeat.one(c.id, key.Scope, key.Key)
		if err != nil {
			return false, err
		}
		if row == nil {
			continue
		}
		if head.Repeats == nil {
			head.Repeats = make(map[history.Key]uint64)
		}
		head.Repeats[key] = uint64(row[0].(int64))
	}
	return true, nil
}
