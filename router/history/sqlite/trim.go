package sqlite

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

const (
	trimPage  = 1_000 // channels found in one read transaction
	trimChunk = 1_000 // rows deleted in one write transaction: some 10 ms in which nothing is appended
)

// cut is what retention wants of one channel; it is compared with its row again
// in the transaction that deletes, since others may have trimmed it meanwhile.
type cut struct {
	id       int64
	size     int64 // newest events that stay; 0: no bound
	cutoffMS int64 // everything older goes; math.MinInt64: no bound
}

// trimmer is the statements of retention on the writer's connection.
type trimmer struct {
	forget *stmt
	unmark *stmt
	began  *stmt // sets first, and its time
	given  *stmt // places of the log are not given twice
	keys   *stmt
	reset  *stmt
	looked *stmt
}

func (t *trimmer) prepare(p *preparer) {
	t.forget = p.prepare(`DELETE FROM log WHERE id = ?`)
	t.unmark = p.prepare(`DELETE FROM marks WHERE channel_id = ? AND offset < ?`)
	t.began = p.prepare(`UPDATE heads SET first = ?, oldest_ms = ?, idle_ms = ? WHERE id = ?`)
	t.given = p.prepare(`UPDATE counters SET value = max(value, ?) WHERE name = 'log'`)
	t.keys = p.prepare(`DELETE FROM repeats WHERE (channel_id, scope, key) IN (
		SELECT channel_id, scope, key FROM repeats WHERE time_ms < ? ORDER BY time_ms LIMIT ?)`)
	t.reset = p.prepare(`UPDATE retention SET rules = ?, walked = 0, scanned = ?`)
	t.looked = p.prepare(`UPDATE retention SET walked = ?, scanned = ? WHERE rules = ?`)
}

// Trim implements history.Store. What it looks at grows with what must go and
// with what has been published since it looked last, not with the number of
// channels: the oldest event of each channel is indexed by its time, and by size
// only channels are looked at that the log names since. Writers come in between.
func (s *Store) Trim(ctx context.Context, rules []history.Retention, keyWindow time.Duration, limit int) (int, error) {
	if err := history.CheckTrim(rules, limit); err != nil {
		return 0, err
	}
	byNamespace := make(map[string]history.Retention, len(rules))
	for _, rule := range rules {
		byNamespace[rule.Namespace] = rule
	}
	now := s.cfg.Now()
	// What a size takes may bring an old event to the front, hence first.
	gone, err := s.trimBySize(ctx, byNamespace, limit)
	if err == nil && gone < limit {
		var n int
		n, err = s.trimByAge(ctx, byNamespace, now, limit-gone)
		gone += n
	}
	if err == nil && keyWindow > 0 && gone < limit {
		var n int
		n, err = s.trimKeys(ctx, now.Add(-keyWindow).UnixMilli(), limit-gone)
		gone += n
	}
	if err != nil {
		return gone, fmt.Errorf("trim history: %w", err)
	}
	return gone, nil
}

// trimByAge cuts the channels whose oldest event is too old; a channel that has
// been cut is not among them any more.
func (s *Store) trimByAge(ctx context.Context, rules map[string]history.Retention, now time.Time, limit int) (int, error) {
	gone := 0
	for _, rule := range rules {
		if rule.TTL == 0 {
			continue
		}
		c := cut{size: int64(rule.Size), cutoffMS: now.Add(-rule.TTL).UnixMilli()}
		for gone < limit {
			cuts, err := s.dueByAge(ctx, rule.Namespace, c)
			if err != nil {
				return gone, err
			}
			n, err := s.cutAll(ctx, cuts, limit-gone)
			gone += n
			if err != nil {
				return gone, err
			}
			if len(cuts) < trimPage {
				break
			}
		}
	}
	return gone, nil
}

func (s *Store) dueByAge(ctx context.Context, namespace string, c cut) ([]cut, error) {
	var cuts []cut
	err := s.read(ctx, func(r *reader) error {
		return r.due.each(func(v []value) bool {
			c.id = v[0].(int64)
			cuts = append(cuts, c)
			return true
		}, namespace, c.cutoffMS, int64(trimPage))
	})
	return cuts, err
}

// cutAll works through cuts, as many as fit into one transaction at a time.
func (s *Store) cutAll(ctx context.Context, cuts []cut, limit int) (int, error) {
	gone := 0
	for len(cuts) > 0 && gone < limit {
		budget := min(limit-gone, trimChunk)
		left := budget
		err := s.write(ctx, func(w *writer) error {
			place, err := number(w.top)
			if err == nil {
				_, err = w.trimmer.given.run(place)
			}
			for err == nil && len(cuts) > 0 && left > 0 && ctx.Err() == nil {
				var n int
				n, err = w.cut(cuts[0], left)
				if n < left {
					cuts = cuts[1:] // this one is done
				}
				left -= n
			}
			if err != nil {
				return err
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

// cut deletes at most limit events of a channel, oldest first.
func (w *writer) cut(want cut, limit int) (int, error) {
	c, err := readRow(w.byID.one(want.id))
	if err != nil || c == nil {
		return 0, err
	}
	floor := int64(0) // by size: everything up to here goes
	if want.size > 0 {
		floor = c.head - want.size
	}
	gone := 0
	for gone < limit && c.first <= c.head && (c.first <= floor || c.oldestMS < want.cutoffMS) {
		n, err := w.cutStretch(c, floor, want.cutoffMS, limit-gone)
		if err != nil {
			return 0, err
		}
		gone += n
	}
	if gone == 0 {
		return 0, nil
	}
	if _, err := w.trimmer.unmark.run(c.id, c.first); err != nil {
		return 0, err
	}
	oldest, idle := any(c.oldestMS), any(nil)
	if c.first > c.head {
		oldest, idle = nil, w.now().UnixMilli()
	}
	_, err = w.trimmer.began.run(c.first, oldest, idle, c.id)
	return gone, err
}

// cutStretch deletes up to the next mark. It leaves that event, unless it is the
// head, since the time of the oldest that stays must be known.
func (w *writer) cutStretch(c *row, floor, cutoffMS int64, limit int) (int, error) {
	end := min(c.head, (c.first/markEvery+1)*markEvery)
	places, err := w.places(c, c.first, end)
	if err != nil {
		return 0, err
	}
	n, most := 0, min(limit, len(places))
	if end < c.head {
		most = min(most, len(places)-1)
	}
	for n < most && (c.first <= floor || places[n].timeMS < cutoffMS) {
		if _, err := w.trimmer.forget.run(places[n].place); err != nil {
			return 0, err
		}
		c.first++
		n++
	}
	if n < len(places) {
		c.oldestMS = places[n].timeMS
	}
	return n, nil
}

func (s *Store) trimKeys(ctx context.Context, cutoffMS int64, limit int) (int, error) {
	gone := 0
	for gone < limit {
		if old, err := s.anyKeyBefore(ctx, cutoffMS); err != nil || !old {
			return gone, err
		}
		budget := min(limit-gone, trimChunk)
		var n int64
		err := s.write(ctx, func(w *writer) (err error) {
			n, err = w.trimmer.keys.run(cutoffMS, int64(budget))
			return err
		})
		if err != nil {
			return gone, err
		}
		gone += int(n)
	}
	return gone, nil
}

// anyKeyBefore saves the writer's lock when there is nothing to do.
func (s *Store) anyKeyBefore(ctx context.Context, cutoffMS int64) (bool, error) {
	var old bool
	err := s.read(ctx, func(r *reader) error {
		v, err := r.oldKey.one(cutoffMS)
		old = v != nil
		return err
	})
	return old, err
}

// noCutoff is the cutoff of rules without an age.
const noCutoff = math.MinInt64
