package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// Trim implements history.Store. It looks at every channel under the lock.
func (s *Store) Trim(ctx context.Context, rules []history.Retention, keyWindow time.Duration, limit int) (int, error) {
	if err := history.CheckTrim(rules, limit); err != nil {
		return 0, err
	}
	if err := s.enter(ctx); err != nil {
		return 0, fmt.Errorf("trim history: %w", err)
	}
	defer s.leave()
	now := s.now()
	byNamespace := make(map[string]history.Retention, len(rules))
	for _, rule := range rules {
		byNamespace[rule.Namespace] = rule
	}
	gone := 0
	for name, c := range s.channels {
		if rule, ok := byNamespace[history.Namespace(name)]; ok && gone < limit {
			gone += c.trim(rule, now, limit-gone)
		}
		if keyWindow > 0 && gone < limit {
			gone += c.forget(now.Add(-keyWindow).UnixMilli(), limit-gone)
		}
	}
	return gone, nil
}

// trim drops a prefix: the events past the size, and those before the first
// one that is young enough.
func (c *channel) trim(rule history.Retention, now time.Time, limit int) int {
	n := 0
	if rule.Size > 0 {
		n = max(0, len(c.events)-rule.Size)
	}
	if rule.TTL > 0 {
		cutoff := now.Add(-rule.TTL).UnixMilli()
		for n < len(c.events) && c.events[n].TimeMS < cutoff {
			n++
		}
	}
	n = min(n, limit)
	clear(c.events[:n]) // the array lives on behind the slice; its data must not
	c.events = c.events[n:]
	if n > 0 && len(c.events) == 0 {
		c.idle = now
	}
	return n
}

func (c *channel) forget(cutoffMS int64, limit int) int {
	n := 0
	for key, first := range c.keys {
		if n < limit && first.timeMS < cutoffMS {
			delete(c.keys, key)
			n++
		}
	}
	return n
}
