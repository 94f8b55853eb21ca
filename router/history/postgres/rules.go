package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
)

const (
	rulesSQL = `SELECT namespace, size, ttl_ms, walked, idle FROM history_rules`

	putRulesSQL = `
INSERT INTO history_rules (namespace, size, ttl_ms, walked, idle)
SELECT namespace, size, ttl_ms, '', true FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS r (namespace, size, ttl_ms)
ON CONFLICT (namespace) DO UPDATE SET size = excluded.size, ttl_ms = excluded.ttl_ms, walked = '', idle = true`

	dropRulesSQL = `DELETE FROM history_rules WHERE namespace = ANY ($1::text[])`

	walkSQL = `SELECT channel FROM history_channels WHERE channel >= $1 AND channel < $2 ORDER BY channel LIMIT $3`

	// listSQL locks the channels' rows first, like everybody who writes looks. It
	// tells which it could lock.
	listSQL = `
WITH free AS (
	SELECT channel FROM history_channels WHERE channel = ANY ($1::text[]) FOR UPDATE%s
), listed AS (
	INSERT INTO history_looks (channel, due_ms) SELECT channel, $2::bigint FROM free
	ON CONFLICT (channel) DO UPDATE SET due_ms = excluded.due_ms
)
SELECT channel FROM free`

	walkedSQL = `UPDATE history_rules SET walked = $2 WHERE namespace = $1 AND size = $3 AND ttl_ms = $4`
)

var (
	listFreeSQL = fmt.Sprintf(listSQL, " SKIP LOCKED")
	listOneSQL  = fmt.Sprintf(listSQL, "")
)

// rules are what a Trim keeps to.
type rules struct {
	byNamespace map[string]history.Retention
	walks       []walk
}

// walk goes through the channels of a namespace whose rule is new.
type walk struct {
	namespace string
	after     string // the last channel that was put on the list
}

func (r *rules) of(channel string) (history.Retention, bool) {
	rule, ok := r.byNamespace[history.Namespace(channel)]
	return rule, ok
}

// agreeOnRules compares the rules with those that the looks were made for. Only
// the milliseconds of a TTL count, there as here. What a version made that let no
// rows go did not list idle channels, and is made again.
func (s *Store) agreeOnRules(ctx context.Context, wanted []history.Retention) (*rules, error) {
	r := &rules{byNamespace: make(map[string]history.Retention, len(wanted))}
	for _, rule := range wanted {
		r.byNamespace[rule.Namespace] = rule
	}
	agreed, gone, err := s.readRules(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("read retention rules: %w", err)
	}
	var namespaces []string
	var sizes, ttls []int64
	for namespace, rule := range r.byNamespace {
		if agreed[namespace] {
			continue
		}
		namespaces = append(namespaces, namespace)
		sizes = append(sizes, int64(rule.Size))
		ttls = append(ttls, rule.TTL.Milliseconds())
		r.walks = append(r.walks, walk{namespace: namespace})
	}
	if len(namespaces) > 0 {
		_, err = s.exec(ctx, putRulesSQL, namespaces, sizes, ttls)
	}
	if err == nil && len(gone) > 0 {
		_, err = s.exec(ctx, dropRulesSQL, gone)
	}
	if err != nil {
		return nil, fmt.Errorf("write retention rules: %w", err)
	}
	return r, nil
}

// readRules finds which namespaces' rules are as they were, with the walks that
// are not at their end, and which namespaces have no rule any more.
func (s *Store) readRules(ctx context.Context, r *rules) (agreed map[string]bool, gone []string, err error) {
	rows, err := s.writing.Query(ctx, rulesSQL)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	agreed = make(map[string]bool)
	for rows.Next() {
		var namespace string
		var size, ttlMS int64
		var walked *string
		var idle bool
		if err := rows.Scan(&namespace, &size, &ttlMS, &walked, &idle); err != nil {
			return nil, nil, err
		}
		rule, ok := r.byNamespace[namespace]
		switch {
		case !ok:
			gone = append(gone, namespace)
		case int64(rule.Size) == size && rule.TTL.Milliseconds() == ttlMS && idle:
			agreed[namespace] = true
			if walked != nil {
				r.walks = append(r.walks, walk{namespace: namespace, after: *walked})
			}
		}
	}
	return agreed, gone, rows.Err()
}

// walk puts the next page of the first walk on the list, and tells whether there
// is more to do.
func (s *Store) walk(ctx context.Context, r *rules) (more bool, err error) {
	if len(r.walks) == 0 {
		return false, nil
	}
	w := &r.walks[0]
	from, to := w.bounds()
	page, err := s.channels(ctx, walkSQL, from, to, trimPage)
	if err != nil {
		return false, fmt.Errorf("walk channels: %w", err)
	}
	if err := s.list(ctx, w.own(page)); err != nil {
		return false, fmt.Errorf("list channels: %w", err)
	}
	var walked *string // NULL: at the end
	if len(page) == trimPage {
		w.after = page[len(page)-1]
		walked = &w.after
	}
	rule := r.byNamespace[w.namespace]
	if _, err := s.exec(ctx, walkedSQL, w.namespace, walked, int64(rule.Size), rule.TTL.Milliseconds()); err != nil {
		return false, fmt.Errorf("write retention rules: %w", err)
	}
	if walked == nil {
		r.walks = r.walks[1:]
	}
	return len(r.walks) > 0, nil
}

// list puts channels on the list. Those that are being appended to are waited
// for one by one, holding nothing: the append may not list them.
func (s *Store) list(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	now := s.cfg.Now().UnixMilli()
	listed, err := s.channels(ctx, listFreeSQL, names, now)
	if err != nil || len(listed) == len(names) {
		return err
	}
	done := make(map[string]bool, len(listed))
	for _, name := range listed {
		done[name] = true
	}
	for _, name := range names {
		if done[name] {
			continue
		}
		if _, err := s.channels(ctx, listOneSQL, []string{name}, now); err != nil {
			return err
		}
	}
	return nil
}

// channels are the answer to a query of names.
func (s *Store) channels(ctx context.Context, sql string, args ...any) (names []string, err error) {
	err = again(ctx, func() error {
		rows, err := s.writing.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return names, err
}

// bounds are the first name that is wanted and the first that is not. Names hold
// no control characters and end within 255 bytes. Those without a namespace may
// be anywhere.
func (w *walk) bounds() (from, to string) {
	from, to = "", strings.Repeat("\U0010ffff", 64)
	if w.namespace != "" {
		from, to = w.namespace+":", w.namespace+";" // the character after a colon
	}
	if w.after != "" {
		from = w.after + "\x01"
	}
	return from, to
}

// own are the names that are of the namespace.
func (w *walk) own(page []string) []string {
	own := make([]string, 0, len(page))
	for _, name := range page {
		if history.Namespace(name) == w.namespace {
			own = append(own, name)
		}
	}
	return own
}
