package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
)

const (
	// renewSQL moves the rows that are as they were read. What a sequence gives
	// is compared too: raiseSQL may have been overtaken.
	renewSQL = `
WITH moved AS (
	UPDATE history_channels c
	SET renewed = CASE WHEN r.fresh > 0 THEN r.fresh ELSE GREATEST(nextval('history_epochs'), r.floor + 1) END
	FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
		AS r (channel, epoch, head, fresh, floor)
	WHERE c.channel = r.channel AND GREATEST(c.epoch, c.renewed) = r.epoch AND c.head = r.head
		AND r.head = r.head + 0
	RETURNING c.channel
)
UPDATE history_looks l SET idle_ms = $6::bigint FROM moved m WHERE l.channel = m.channel AND l.idle_ms IS NOT NULL`

	// raiseSQL keeps later epochs of all channels above what others have seen.
	belowSQL  = `SELECT last_value < $1::bigint FROM history_epochs`
	raiserSQL = `SELECT FROM history_raise FOR UPDATE`
	raiseSQL  = `
SELECT setval('history_epochs', $1::bigint) WHERE (SELECT last_value FROM history_epochs) < $1::bigint`

	rowsSQL = `
SELECT q.number, GREATEST(c.epoch, c.renewed), c.head
FROM unnest($1::text[]) WITH ORDINALITY AS q (channel, number)
JOIN history_channels c ON c.channel = q.channel
WHERE q.number = q.number + 0`
)

// Renew implements history.Store. The events and keys of a channel stay under
// the epoch that its row was made with; only what readers are told changes. A
// deadlock is a lost race: the rows are then read as they are.
func (s *Store) Renew(ctx context.Context, renewals []history.Renewal) ([]history.Head, error) {
	if err := history.CheckRenewals(renewals); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("renew history epochs: %w", err)
	}
	defer s.gate.Leave()
	heads := make([]history.Head, len(renewals))
	if len(renewals) == 0 {
		return heads, nil
	}
	err := s.renew(ctx, renewals)
	if err == nil || judge(err) == race {
		err = s.readRows(ctx, renewals, heads)
	}
	if err != nil {
		return nil, fmt.Errorf("renew history epochs: %w", s.failed(ctx, err))
	}
	return heads, nil
}

func (s *Store) renew(ctx context.Context, renewals []history.Renewal) error {
	// Sorted, so that two routers that renew the same channels wait for each other.
	sorted := slices.Clone(renewals)
	slices.SortFunc(sorted, func(a, b history.Renewal) int { return strings.Compare(a.Channel, b.Channel) })
	channels := make([]string, len(sorted))
	epochs, heads, fresh, floors := make([]int64, len(sorted)), make([]int64, len(sorted)), make([]int64, len(sorted)), make([]int64, len(sorted))
	raise := int64(0)
	for i, r := range sorted {
		channels[i], epochs[i], heads[i], fresh[i] = r.Channel, history.Signed(r.Epoch), history.Signed(r.Head), int64(r.New)
		if r.New == 0 && r.Epoch <= history.MaxEpoch {
			floors[i] = int64(max(r.Floor, r.Epoch))
			raise = max(raise, floors[i])
		}
	}
	if raise > 0 {
		if err := s.raise(ctx, raise); err != nil {
			return err
		}
	}
	_, err := s.writing.Exec(ctx, renewSQL, channels, epochs, heads, fresh, floors, s.cfg.Now().UnixMilli())
	return err
}

// raise makes the sequence go on above floor. One does it at a time: what it reads
// and then sets would else take back what another has set meanwhile.
func (s *Store) raise(ctx context.Context, floor int64) error {
	var below bool
	if err := s.writing.QueryRow(ctx, belowSQL, floor).Scan(&below); err != nil || !below {
		return err
	}
	return pgx.BeginFunc(ctx, s.writing, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, raiserSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, raiseSQL, floor)
		return err
	})
}

func (s *Store) readRows(ctx context.Context, renewals []history.Renewal, heads []history.Head) error {
	channels := make([]string, len(renewals))
	for i, r := range renewals {
		channels[i], heads[i].Channel = r.Channel, r.Channel
	}
	rows, err := s.writing.Query(ctx, rowsSQL, channels)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var number, epoch, head int64
		if err := rows.Scan(&number, &epoch, &head); err != nil {
			return err
		}
		heads[number-1].Epoch, heads[number-1].Offset = uint64(epoch), uint64(head)
	}
	return rows.Err()
}
