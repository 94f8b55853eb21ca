package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// forgetter is the statements that let rows go, on the writer's connection.
type forgetter struct {
	idle  *stmt // the epoch of a channel that may go
	keyed *stmt
	name  *stmt
	head  *stmt
	raise *stmt // no epoch is given again
	stamp *stmt
}

func (f *forgetter) prepare(p *preparer) {
	f.idle = p.prepare(`SELECT epoch FROM heads WHERE id = ? AND idle_ms <= ? AND first > head`)
	f.keyed = p.prepare(`SELECT 1 FROM repeats WHERE channel_id = ? LIMIT 1`)
	f.name = p.prepare(`DELETE FROM names WHERE id = ?`)
	f.head = p.prepare(`DELETE FROM heads WHERE id = ?`)
	f.raise = p.prepare(`UPDATE counters SET value = max(value, ?) WHERE name = 'epoch'`)
	f.stamp = p.prepare(`UPDATE heads SET idle_ms = ? WHERE id = ? AND idle_ms IS NOT NULL`)
}

// Forget implements history.Store. Idle channels are indexed by the time since
// when they are: it looks at those that may go, and at no other.
func (s *Store) Forget(ctx context.Context, idle time.Duration, limit int) (int, error) {
	if err := history.CheckForget(idle, limit); err != nil {
		return 0, err
	}
	now := s.cfg.Now()
	nowMS, cutoffMS := now.UnixMilli(), now.Add(-idle).UnixMilli()
	gone, err := 0, s.stampEarly(ctx, now)
	for err == nil && gone < limit {
		var ids []int64
		if ids, err = s.ids(ctx, func(r *reader) *stmt { return r.idle }, cutoffMS, min(limit-gone, trimChunk)); err != nil || len(ids) == 0 {
			break
		}
		var n int
		n, err = s.forget(ctx, ids, cutoffMS, nowMS)
		gone += n
	}
	if err != nil {
		return gone, fmt.Errorf("forget channels: %w", err)
	}
	return gone, nil
}

// stampEarly corrects what a clock that was ahead has noted; it would keep such a
// channel until that time has come.
func (s *Store) stampEarly(ctx context.Context, now time.Time) error {
	ids, err := s.ids(ctx, func(r *reader) *stmt { return r.early }, now.Add(history.KeepSlack).UnixMilli(), trimChunk)
	if err != nil || len(ids) == 0 {
		return err
	}
	return s.stamp(ctx, ids, now.UnixMilli())
}

func (s *Store) ids(ctx context.Context, query func(*reader) *stmt, boundMS int64, most int) ([]int64, error) {
	var ids []int64
	err := s.read(ctx, func(r *reader) error {
		return query(r).each(func(v []value) bool {
			ids = append(ids, v[0].(int64))
			return true
		}, boundMS, int64(most))
	})
	return ids, err
}

// forget compares each row again: only the writer's transaction knows that nothing
// has been appended. What has to stay counts as used now.
func (s *Store) forget(ctx context.Context, ids []int64, cutoffMS, nowMS int64) (gone int, err error) {
	err = s.write(ctx, func(w *writer) error {
		gone = 0
		for i, id := range ids {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			went, err := w.forget(id, cutoffMS, nowMS)
			if err != nil {
				return err
			}
			if went {
				gone++
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return gone, nil
}

func (w *writer) forget(id, cutoffMS, nowMS int64) (bool, error) {
	f := &w.forgetter
	row, err := f.idle.one(id, cutoffMS)
	if err != nil || row == nil {
		return false, err
	}
	epoch := row[0].(int64)
	if row, err = f.keyed.one(id); err != nil {
		return false, err
	}
	if row != nil || epoch > history.MaxForgotten {
		_, err = f.stamp.run(nowMS, id)
		return false, err
	}
	for _, step := range []struct {
		stmt *stmt
		arg  int64
	}{{f.raise, epoch}, {f.name, id}, {f.head, id}} {
		if _, err := step.stmt.run(step.arg); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Keep implements history.Store. Most channels need no note: the writer is not
// taken for them.
func (s *Store) Keep(ctx context.Context, channels []string) error {
	nowMS := s.cfg.Now().UnixMilli()
	var ids []int64
	err := s.read(ctx, func(r *reader) error {
		for i, channel := range channels {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			row, err := r.noted.one(channel)
			if err != nil {
				return err
			}
			if row != nil && row[1].(int64) < nowMS-history.KeepSlack.Milliseconds() {
				ids = append(ids, row[0].(int64))
			}
		}
		return nil
	})
	if err == nil && len(ids) > 0 {
		err = s.stamp(ctx, ids, nowMS)
	}
	if err != nil {
		return fmt.Errorf("keep channels: %w", err)
	}
	return nil
}

func (s *Store) stamp(ctx context.Context, ids []int64, nowMS int64) error {
	return s.write(ctx, func(w *writer) error {
		for _, id := range ids {
			if _, err := w.forgetter.stamp.run(nowMS, id); err != nil {
				return err
			}
		}
		return nil
	})
}
