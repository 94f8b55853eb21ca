package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// Renew implements history.Store. The events and keys of a channel stay under
// the epoch that its row was made with; only what readers are told changes.
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
			if err := w.renew(ctx, &renewals[i], &heads[i]); err != nil {
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

// renew runs inside a write transaction: nothing comes between the look and the
// change.
func (w *writer) renew(ctx context.Context, r *history.Renewal, head *history.Head) error {
	head.Channel = r.Channel
	c, err := w.row(r.Channel)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.shown == history.Signed(r.Epoch) && c.head == history.Signed(r.Head) {
		c.shown = int64(r.New)
		if r.New == 0 {
			above := history.Signed(max(r.Floor, r.Epoch))
			err = w.conn.QueryRowContext(ctx, `UPDATE counters SET value = max(value, ?) + 1 WHERE name = 'epoch' RETURNING value`, above).Scan(&c.shown)
		}
		if err == nil {
			_, err = w.conn.ExecContext(ctx, `UPDATE channels SET renewed = ? WHERE channel = ?`, c.shown, r.Channel)
		}
		if err != nil {
			return err
		}
	}
	head.Epoch, head.Offset = uint64(c.shown), uint64(c.head)
	return nil
}
