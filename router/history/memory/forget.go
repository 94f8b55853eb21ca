package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// Forget implements history.Store. It looks at every channel under the lock.
func (s *Store) Forget(ctx context.Context, idle time.Duration, limit int) (int, error) {
	if err := history.CheckForget(idle, limit); err != nil {
		return 0, err
	}
	if err := s.enter(ctx); err != nil {
		return 0, fmt.Errorf("forget channels: %w", err)
	}
	defer s.leave()
	now := s.now()
	gone := 0
	for name, c := range s.channels {
		if len(c.events) > 0 {
			continue
		}
		switch {
		case c.idle.Sub(now) > history.KeepSlack: // a clock was ahead
			c.idle = now
		case now.Sub(c.idle) < idle || gone == limit:
		case len(c.keys) > 0 || c.epoch > history.MaxForgotten:
			c.idle = now
		default:
			delete(s.channels, name)
			s.epochs = max(s.epochs, c.epoch)
			gone++
		}
	}
	return gone, nil
}

// Keep implements history.Store.
func (s *Store) Keep(ctx context.Context, channels []string) error {
	if err := s.enter(ctx); err != nil {
		return fmt.Errorf("keep channels: %w", err)
	}
	defer s.leave()
	now := s.now()
	for _, name := range channels {
		if c := s.channels[name]; c != nil {
			c.idle = now
		}
	}
	return nil
}
