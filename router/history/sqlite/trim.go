package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

const (
	trimPage  = 500   // channels looked at in one read transaction
	trimChunk = 1_000 // rows deleted in one write transaction: some 10 ms in which nothing is appended
)

// aged is a channel with its oldest event.
type aged struct {
	channel string
	row     row
	first   sql.NullInt64 // NULL: no events
	timeMS  sql.NullInt64
}

// cut is the way that one rule goes through one channel.
type cut struct {
	row      row
	first    int64 // oldest offset still there
	floor    int64 // by size: everything up to here goes
	cutoffMS int64 // by age: everything older goes; 0 without a TTL
}

// Trim implements history.Store. It looks at the oldest event of every channel,
// page by page, and deletes in chunks; writers come in between.
func (s *Store) Trim(ctx context.Context, rules []history.Retention, keyWindow time.Duration, limit int) (int, error) {
	if err := history.CheckTrim(rules, limit); err != nil {
		return 0, err
	}
	gone, err := s.trimEvents(ctx, rules, limit)
	if err == nil && keyWindow > 0 && gone < limit {
		var keys int
		keys, err = s.trimKeys(ctx, s.cfg.Now().Add(-keyWindow).UnixMilli(), limit-gone)
		gone += keys
	}
	if err != nil {
		return gone, fmt.Errorf("trim history: %w", err)
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

func (s *Store) agedPage(ctx context.Context, after string) ([]aged, error) {
	page := make([]aged, 0, trimPage)
	err := s.read(ctx, func(r *reader) error {
		rows, err := r.aged.Query(after, trimPage)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var a aged
			if err := rows.Scan(&a.channel, &a.row.id, &a.row.epoch, &a.row.head, &a.first, &a.timeMS); err != nil {
				return err
			}
			page = append(page, a)
		}
		return rows.Err()
	})
	return page, err
}

// due are the channels whose oldest event must go.
func due(page []aged, rules map[string]history.Retention, now time.Time) []cut {
	var cuts []cut
	for _, a := range page {
		rule, ok := rules[history.Namespace(a.channel)]
		if !ok || !a.first.Valid {
			continue
		}
		c := cut{row: a.row, first: a.first.Int64}
		if rule.Size > 0 {
			c.floor = a.row.head - int64(rule.Size)
		}
		if rule.TTL > 0 {
			c.cutoffMS = now.Add(-rule.TTL).UnixMilli()
		}
		if c.first <= c.floor || a.timeMS.Int64 < c.cutoffMS {
			cuts = append(cuts, c)
		}
	}
	return cuts
}

// cutAll works through cuts, as many as fit into one transaction at a time.
func (s *Store) cutAll(ctx context.Context, cuts []cut, limit int) (int, error) {
	gone := 0
	for len(cuts) > 0 && gone < limit {
		budget := min(limit-gone, trimChunk)
		left := budget
		err := s.write(ctx, func(w *writer) error {
			for len(cuts) > 0 && left > 0 && ctx.Err() == nil {
				n, err := w.cutOne(&cuts[0], left)
				if err != nil {
					return err
				}
				if n < left {
					cuts = cuts[1:] // this one is done
				}
				left -= n
			}
			return ctx.Err()
		})
		if err != nil {
			return gone, err
		}
		gone += budget - left
	}
	return gone, nil
}

// cutOne deletes at most limit events, oldest first.
func (w *writer) cutOne(c *cut, limit int) (int, error) {
	end := c.first + int64(limit) // not itself
	floor := min(c.floor, end-1)
	if c.cutoffMS != 0 {
		var young sql.NullInt64
		if err := w.young.QueryRow(c.row.id, c.row.epoch, c.floor, end, c.cutoffMS).Scan(&young); err != nil {
			return 0, err
		}
		byAge := end - 1
		if young.Valid {
			byAge = young.Int64 - 1
		}
		floor = max(floor, byAge)
	}
	result, err := w.cut.Exec(c.row.id, c.row.epoch, floor)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	c.first = floor + 1
	return int(n), err
}

func (s *Store) trimKeys(ctx context.Context, cutoffMS int64, limit int) (int, error) {
	gone := 0
	for gone < limit {
		budget := min(limit-gone, trimChunk)
		var n int64
		err := s.write(ctx, func(w *writer) error {
			result, err := w.cutKeys.Exec(cutoffMS, budget)
			if err != nil {
				return err
			}
			n, err = result.RowsAffected()
			return err
		})
		if err != nil {
			return gone, err
		}
		gone += int(n)
		if int(n) < budget {
			break
		}
	}
	return gone, nil
}
