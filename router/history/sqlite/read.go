package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// reader is one connection that reads, owned by who took it from Store.readers.
// The writer has one as well, over its own connection.
type reader struct {
	conn *sql.Conn

	channel *sql.Stmt
	first   *sql.Stmt
	repeat  *sql.Stmt
	forward *sql.Stmt
	reverse *sql.Stmt
	aged    *sql.Stmt
}

func newReader(ctx context.Context, conn *sql.Conn) (*reader, error) {
	p := preparer{ctx: ctx, conn: conn}
	const columns = `SELECT offset, time_ms, binary, sender, meta, data FROM events WHERE channel_id = ? AND epoch = ? `
	r := &reader{
		conn:    conn,
		channel: p.prepare(`SELECT id, epoch, head, max(epoch, renewed) FROM channels WHERE channel = ?`),
		first:   p.prepare(`SELECT offset FROM events WHERE channel_id = ? AND epoch = ? ORDER BY offset LIMIT 1`),
		repeat:  p.prepare(`SELECT offset FROM keys WHERE channel_id = ? AND epoch = ? AND scope = ? AND key = ?`),
		forward: p.prepare(columns + `AND offset > ? ORDER BY offset LIMIT ?`),
		reverse: p.prepare(columns + `AND offset < ? ORDER BY offset DESC LIMIT ?`),
		// some channels after a name, each with its oldest event
		aged: p.prepare(`SELECT c.channel, c.id, c.epoch, c.head, e.offset, e.time_ms
			FROM (SELECT * FROM channels WHERE channel > ? ORDER BY channel LIMIT ?) c
			LEFT JOIN events e ON e.id = (SELECT id FROM events
				WHERE channel_id = c.id AND epoch = c.epoch ORDER BY offset LIMIT 1)
			ORDER BY c.channel`),
	}
	return r, p.err
}

// row of a channel. Its events are stored under epoch, for good; shown is the
// epoch that everybody else knows: of the last renewal, else the same.
type row struct{ id, epoch, head, shown int64 }

func (r *reader) row(channel string) (row, error) {
	var c row
	err := r.channel.QueryRow(channel).Scan(&c.id, &c.epoch, &c.head, &c.shown)
	return c, err
}

// Read implements history.Store: all ranges from one snapshot, one reader.
// Within the process a statement a range costs no more than one for all.
func (s *Store) Read(ctx context.Context, ranges []history.Range) ([]history.Page, error) {
	if err := history.CheckRanges(ranges); err != nil {
		return nil, err
	}
	pages := make([]history.Page, len(ranges))
	err := s.read(ctx, func(r *reader) error {
		for i := range ranges {
			if i%lookEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			pages[i].Channel = ranges[i].Channel
			if err := r.readPage(ctx, &ranges[i], &pages[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return pages, nil
}

func (r *reader) readPage(ctx context.Context, rng *history.Range, p *history.Page) error {
	c, err := r.row(rng.Channel)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	p.Exists, p.Epoch, p.Head = true, uint64(c.shown), uint64(c.head)
	var first int64
	err = r.first.QueryRow(c.id, c.epoch).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) {
		p.First = p.Head + 1
		return nil
	}
	if err != nil {
		return err
	}
	p.First = uint64(first)
	if !rng.Reverse && rng.After >= p.Head {
		return nil
	}
	return r.readEvents(ctx, c, rng, p)
}

func (r *reader) readEvents(ctx context.Context, c row, rng *history.Range, p *history.Page) error {
	stmt, bound := r.forward, rng.After
	if rng.Reverse {
		stmt, bound = r.reverse, rng.Before
		if bound == 0 {
			bound = p.Head + 1
		}
	}
	rows, err := stmt.Query(c.id, c.epoch, history.Signed(bound), rng.Limit)
	if err != nil {
		return err
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		var e history.Event
		if err := rows.Scan(&e.Offset, &e.TimeMS, &e.Binary, &e.From, &e.Meta, &e.Data); err != nil {
			return err
		}
		if e.Data == nil {
			e.Data = []byte{} // how the driver gives an empty blob
		}
		size += e.Size()
		if rng.MaxBytes > 0 && size > rng.MaxBytes && len(p.Events) > 0 {
			break
		}
		p.Events = append(p.Events, e)
		if len(p.Events)%lookEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	p.More = more(rng, p)
	return rows.Err()
}

// more: without holes, the last event of a page that is not an end of the
// history has another behind it.
func more(rng *history.Range, p *history.Page) bool {
	if len(p.Events) == 0 {
		return false
	}
	last := p.Events[len(p.Events)-1].Offset
	if rng.Reverse {
		return last > p.First
	}
	return last < p.Head
}
