package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// lookEvery is after how many runs or ranges a call looks at its context.
const lookEvery = 64

// writer is the one connection that writes, owned by who took it from Store.writer.
type writer struct {
	*reader // over the same connection

	move    *sql.Stmt // the fence: compare the row with what is believed, set the new head
	event   *sql.Stmt
	key     *sql.Stmt
	epoch   *sql.Stmt
	create  *sql.Stmt
	young   *sql.Stmt
	cut     *sql.Stmt
	cutKeys *sql.Stmt
}

func newWriter(ctx context.Context, conn *sql.Conn) (*writer, error) {
	r, err := newReader(ctx, conn)
	if err != nil {
		return nil, err
	}
	p := preparer{ctx: ctx, conn: conn}
	w := &writer{
		reader: r,
		move:   p.prepare(`UPDATE channels SET head = ? WHERE channel = ? AND max(epoch, renewed) = ? AND head = ? RETURNING id, epoch`),
		event: p.prepare(`INSERT INTO events (channel_id, epoch, offset, time_ms, binary, sender, meta, data)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`),
		key:    p.prepare(`INSERT INTO keys (channel_id, epoch, scope, key, offset, time_ms) VALUES (?, ?, ?, ?, ?, ?)`),
		epoch:  p.prepare(`UPDATE counters SET value = value + 1 WHERE name = 'epoch' RETURNING value`),
		create: p.prepare(`INSERT INTO channels (channel, id, epoch, head) VALUES (?1, ?2, ?2, 0)`),
		// the first event young enough to stay, of those that a size spares
		young: p.prepare(`SELECT min(offset) FROM events
			WHERE channel_id = ? AND epoch = ? AND offset > ? AND offset < ? AND time_ms >= ?`),
		cut: p.prepare(`DELETE FROM events WHERE channel_id = ? AND epoch = ? AND offset <= ?`),
		cutKeys: p.prepare(`DELETE FROM keys WHERE (channel_id, epoch, scope, key) IN (
			SELECT channel_id, epoch, scope, key FROM keys WHERE time_ms < ? ORDER BY time_ms LIMIT ?)`),
	}
	return w, p.err
}

// preparer keeps the first error of many statements.
type preparer struct {
	ctx  context.Context
	conn *sql.Conn
	err  error
}

func (p *preparer) prepare(query string) *sql.Stmt {
	if p.err != nil {
		return nil
	}
	stmt, err := p.conn.PrepareContext(p.ctx, query)
	p.err = err
	return stmt
}

// Append implements history.Store.
func (s *Store) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	if err := history.CheckRuns(runs); err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	outcomes := make([]history.Outcome, len(runs))
	err := s.write(ctx, func(w *writer) error {
		for i := range runs {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			var err error
			if outcomes[i], err = w.append(&runs[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	return outcomes, nil
}

// append stores one run whole or, if the row says otherwise, nothing of it.
func (w *writer) append(run *history.Run) (history.Outcome, error) {
	var id, epoch int64 // under which the events of the channel are stored
	err := w.move.QueryRow(int64(run.NewHead()), run.Channel, history.Signed(run.Epoch), int64(run.Head)).Scan(&id, &epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return history.Lost, nil
	}
	if err != nil {
		return history.Unset, err
	}
	for i := range run.Events {
		e := &run.Events[i]
		if err := w.insert(id, epoch, e); err != nil {
			return history.Unset, fmt.Errorf("channel %q offset %d: %w", run.Channel, e.Offset, err)
		}
	}
	return history.Stored, nil
}

func (w *writer) insert(id, epoch int64, e *history.Event) error {
	offset := int64(e.Offset)
	data, meta := e.Data, e.Meta
	if data == nil {
		data = []byte{} // nil would be NULL
	}
	if len(meta) == 0 {
		meta = nil
	}
	if _, err := w.event.Exec(id, epoch, offset, e.TimeMS, e.Binary, e.From, meta, data); err != nil {
		return err
	}
	if e.Key == "" {
		return nil
	}
	_, err := w.key.Exec(id, epoch, e.Scope, e.Key, offset, e.TimeMS)
	return err
}
