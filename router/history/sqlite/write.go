package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

const (
	// lookEvery is after how many runs or ranges a call looks at its context.
	lookEvery = 64
	// markEvery: each event whose offset it divides has a mark.
	markEvery = 64
	// knownNames bounds each half of the names whose ids a writer remembers.
	knownNames = 32_768
)

// writer is the one connection that writes, owned by who took it from Store.writer.
type writer struct {
	*reader // over the same connection

	// Ids of channels never change and are never given again, so what was read once
	// is true as long as the row is there: a run that is lost forgets it. The older
	// half goes when the younger one is full.
	known, older map[string]int64
	now          func() time.Time
	place        int64 // in the log, given last in this transaction

	top    *stmt // the largest place given so far
	first  *stmt // the fence: nothing is inserted unless the row is as believed
	next   *stmt
	move   *stmt // sets the new head, for channels that are not empty
	fill   *stmt // the same for those that are
	mark   *stmt
	key    *stmt
	epoch  *stmt
	name   *stmt
	create *stmt
	renew  *stmt

	trimmer   trimmer
	forgetter forgetter
}

func newWriter(c *conn, now func() time.Time) (*writer, error) {
	r, err := newReader(c)
	if err != nil {
		return nil, err
	}
	p := preparer{conn: c}
	const columns = `INSERT INTO log (id, channel_id, offset, prev, time_ms, binary, sender, meta, data) `
	w := &writer{
		reader: r,
		known:  make(map[string]int64),
		now:    now,
		top:    p.prepare(`SELECT max(value, (SELECT coalesce(max(id), 0) FROM log)) FROM counters WHERE name = 'log'`),
		first: p.prepare(columns + `SELECT ?1, id, ?2, last, ?3, ?4, ?5, ?6, ?7
			FROM heads WHERE id = ?8 AND epoch = ?9 AND head = ?2 - 1`),
		next: p.prepare(columns + `VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`),
		move: p.prepare(`UPDATE heads SET head = ?, last = ? WHERE id = ? AND oldest_ms IS NOT NULL`),
		fill: p.prepare(`UPDATE heads SET head = ?, last = ?, oldest_ms = ?, idle_ms = NULL WHERE id = ?`),
		mark: p.prepare(`INSERT OR ROLLBACK INTO marks (channel_id, offset, place) VALUES (?, ?, ?)`),
		// A failure ends the transaction anyway; with ROLLBACK no statement of it
		// needs a journal of its own.
		key:    p.prepare(`INSERT OR ROLLBACK INTO repeats (channel_id, scope, key, offset, time_ms) VALUES (?, ?, ?, ?, ?)`),
		epoch:  p.prepare(`UPDATE counters SET value = max(value, ?) + 1 WHERE name = 'epoch' RETURNING value`),
		name:   p.prepare(`INSERT INTO names (channel, id) VALUES (?, ?)`),
		create: p.prepare(`INSERT INTO heads (id, epoch, head, last, first, namespace, idle_ms) VALUES (?1, ?1, 0, 0, 1, ?2, ?3)`),
		renew:  p.prepare(`UPDATE heads SET epoch = ?1, idle_ms = CASE WHEN idle_ms IS NOT NULL THEN ?2 END WHERE id = ?3`),
	}
	w.trimmer.prepare(&p)
	w.forgetter.prepare(&p)
	return w, p.err
}

// Append implements history.Store.
func (s *Store) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	if err := history.CheckRuns(runs); err != nil {
		return nil, fmt.Errorf("append history: %w", err)
	}
	outcomes := make([]history.Outcome, len(runs))
	err := s.write(ctx, func(w *writer) error {
		var err error
		if w.place, err = number(w.top); err != nil {
			return err
		}
		for i := range runs {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
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

// append stores one run whole or, if the row says otherwise, nothing of it. A row
// that is not as believed may be another one by now.
func (w *writer) append(run *history.Run) (history.Outcome, error) {
	id, err := w.id(run.Channel)
	if err != nil {
		return history.Unset, err
	}
	outcome, err := w.appendTo(id, run)
	if err != nil || outcome == history.Stored {
		return outcome, err
	}
	delete(w.known, run.Channel)
	delete(w.older, run.Channel)
	again, err := w.id(run.Channel)
	if err != nil || again == id {
		return outcome, err
	}
	return w.appendTo(again, run)
}

func (w *writer) appendTo(id int64, run *history.Run) (history.Outcome, error) {
	if id == 0 {
		return history.Lost, nil
	}
	for i := range run.Events {
		e := &run.Events[i]
		stored, err := w.insert(id, history.Signed(run.Epoch), e, i == 0)
		if err != nil {
			return history.Unset, fmt.Errorf("channel %q offset %d: %w", run.Channel, e.Offset, err)
		}
		if !stored {
			return history.Lost, nil
		}
	}
	head := int64(run.NewHead())
	moved, err := w.move.run(head, w.place, id)
	if err == nil && moved == 0 {
		_, err = w.fill.run(head, w.place, run.Events[0].TimeMS, id)
	}
	if err != nil {
		return history.Unset, err
	}
	return history.Stored, nil
}

// insert stores the first event of a run if the row is as believed, and each
// further one behind the one before.
func (w *writer) insert(id, epoch int64, e *history.Event, first bool) (bool, error) {
	offset := int64(e.Offset)
	data, meta := e.Data, any(e.Meta)
	if data == nil {
		data = []byte{} // nil would be NULL
	}
	if len(e.Meta) == 0 {
		meta = nil
	}
	prev := w.place
	w.place++
	if first {
		n, err := w.first.run(w.place, offset, e.TimeMS, e.Binary, e.From, meta, data, id, epoch)
		if err != nil || n == 0 {
			w.place--
			return false, err
		}
	} else if _, err := w.next.run(w.place, id, offset, prev, e.TimeMS, e.Binary, e.From, meta, data); err != nil {
		return false, err
	}
	if offset%markEvery == 0 {
		if _, err := w.mark.run(id, offset, w.place); err != nil {
			return false, err
		}
	}
	if e.Key == "" {
		return true, nil
	}
	_, err := w.key.run(id, e.Scope, e.Key, offset, e.TimeMS)
	return true, err
}

// id of a channel that has a row, else 0. Only for transactions that make none:
// what is remembered must have been committed.
func (w *writer) id(channel string) (int64, error) {
	if id, ok := w.known[channel]; ok {
		return id, nil
	}
	id, ok := w.older[channel]
	if !ok {
		c, err := w.head(channel)
		if err != nil || c == nil {
			return 0, err
		}
		id = c.id
	}
	if len(w.known) >= knownNames {
		w.known, w.older = make(map[string]int64), w.known
	}
	w.known[channel] = id
	return id, nil
}
