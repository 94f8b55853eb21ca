package sqlite

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// Renew implements history.Store. Events and keys are stored under the channel,
// not under its epoch: only the row changes.
func (s *Store) Renew(ctx context.Context, renewals []history.Renewal) ([]history.Head, error) {
	if err := history.CheckRenewals(renewals); err != nil {
		return nil, err
	}
	heads := make([]history.Head, len(renewals))
	err := s.write(ctx, func(w *writer) error {
		for i := range renewals {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			if err := w.renewOne(&renewals[i], &heads[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("renew history epochs: %w", err)
	}
	return heads, nil
}

// renewOne runs inside a write transaction: nothing comes between the look and
// the change.
func (w *writer) renewOne(r *history.Renewal, head *history.Head) error {
	head.Channel = r.Channel
	c, err := w.head(r.Channel)
	if err != nil || c == nil {
		return err
	}
	if c.epoch == history.Signed(r.Epoch) && c.head == history.Signed(r.Head) {
		c.epoch = int64(r.New)
		if r.New == 0 {
			if c.epoch, err = w.nextEpoch(history.Signed(max(r.Floor, r.Epoch))); err != nil {
				return err
			}
		}
		if _, err = w.renew.run(c.epoch, w.now().UnixMilli(), c.id); err != nil {
			return err
		}
	}
	head.Epoch, head.Offset = uint64(c.epoch), uint64(c.head)
	return nil
}
