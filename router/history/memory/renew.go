package memory

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// Renew implements history.Store.
func (s *Store) Renew(ctx context.Context, renewals []history.Renewal) ([]history.Head, error) {
	if err := history.CheckRenewals(renewals); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("renew history epochs: %w", err)
	}
	defer s.leave()
	heads := make([]history.Head, len(renewals))
	for i, r := range renewals {
		heads[i].Channel = r.Channel
		c := s.channels[r.Channel]
		if c == nil {
			continue
		}
		if c.epoch == r.Epoch && c.head == r.Head {
			c.epoch, c.idle = s.nextLocked(r), s.now()
		}
		heads[i].Epoch, heads[i].Offset = c.epoch, c.head
	}
	return heads, nil
}

func (s *Store) nextLocked(r history.Renewal) uint64 {
	if r.New != 0 {
		return r.New
	}
	s.epochs = max(s.epochs, r.Floor, r.Epoch) + 1
	return s.epochs
}
