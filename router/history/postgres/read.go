package postgres

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/spillway-io/spillway/router/history"
)

// Read is one statement a direction. LATERAL with LIMIT keeps the planner at
// one descent of the index for each range, whatever it believes of the sizes.
// A page is cut at its byte bound by the database: what is past it is not sent.
const (
	// The size of the events up to and with each; sizes of big values are read
	// without reading the values.
	pageSQL = `
SELECT r.range, GREATEST(c.epoch, c.renewed), c.head, f.first, e."offset", e.time_ms, e.is_binary, e.sender, e.meta, e.data
FROM unnest((SELECT $1::text[]), $2::bigint[], $3::bigint[], $4::bigint[])
	WITH ORDINALITY AS r (channel, bound, most, bytes, range)
JOIN history_channels c ON c.channel = r.channel
LEFT JOIN LATERAL (
	SELECT "offset" AS first FROM history_events
	WHERE channel_id = c.id AND epoch = c.epoch
	ORDER BY "offset" LIMIT 1
) f ON true
LEFT JOIN LATERAL (%s) e ON true
WHERE r.range = r.range + 0`

	forwardSQL = `
	SELECT * FROM history_events
	WHERE channel_id = c.id AND epoch = c.epoch AND "offset" > r.bound
	ORDER BY "offset" LIMIT r.most`
	reverseSQL = `
	SELECT * FROM history_events
	WHERE channel_id = c.id AND epoch = c.epoch AND "offset" < r.bound
	ORDER BY "offset" DESC LIMIT r.most`

	// The first event of a page always fits.
	boundedSQL = `
	SELECT * FROM (
		SELECT b.*, row_number() OVER w AS place,
			sum(octet_length(b.data) + coalesce(octet_length(b.meta), 0)) OVER w AS total
		FROM (%s) b
		WINDOW w AS (ORDER BY b."offset"%s ROWS UNBOUNDED PRECEDING)
	) s
	WHERE s.total <= r.bytes OR s.place = 1`
)

// Read implements history.Store.
func (s *Store) Read(ctx context.Context, ranges []history.Range) ([]history.Page, error) {
	if err := history.CheckRanges(ranges); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer s.gate.Leave()
	pages := make([]history.Page, len(ranges))
	var queries [2]pageQuery // forward, reverse
	for i := range ranges {
		q := &queries[0]
		if ranges[i].Reverse {
			q = &queries[1]
		}
		q.add(i, &ranges[i])
	}
	for direction := range queries {
		q := &queries[direction]
		if len(q.numbers) == 0 {
			continue
		}
		err := again(ctx, func() error {
			rows, err := s.reading.Query(ctx, q.statement(direction == 1), q.channels, q.bounds, q.limits, q.bytes)
			if err != nil {
				return err
			}
			return q.collect(rows, ranges, pages)
		})
		if err != nil {
			return nil, fmt.Errorf("read history: %w", s.failed(ctx, err))
		}
	}
	return pages, nil
}

// pageQuery holds the ranges of one direction as columns.
type pageQuery struct {
	numbers []int // place among all ranges
	bounded bool  // some range bounds its bytes

	channels              []string
	bounds, limits, bytes []int64
}

func (q *pageQuery) add(number int, r *history.Range) {
	bound := r.After
	if r.Reverse {
		bound = r.Before
		if bound == 0 {
			bound = math.MaxInt64
		}
	}
	bytes := int64(math.MaxInt64)
	if r.MaxBytes > 0 {
		bytes = int64(r.MaxBytes)
		q.bounded = true
	}
	q.numbers = append(q.numbers, number)
	q.channels = append(q.channels, r.Channel)
	q.bounds = append(q.bounds, history.Signed(bound))
	q.limits = append(q.limits, int64(r.Limit))
	q.bytes = append(q.bytes, bytes)
}

// statement counts bytes only where some range asks for it.
func (q *pageQuery) statement(reverse bool) string {
	events, order := forwardSQL, ""
	if reverse {
		events, order = reverseSQL, " DESC"
	}
	if q.bounded {
		events = fmt.Sprintf(boundedSQL, events, order)
	}
	return fmt.Sprintf(pageSQL, events)
}

func (q *pageQuery) collect(rows pgx.Rows, ranges []history.Range, pages []history.Page) error {
	defer rows.Close()
	for _, i := range q.numbers {
		pages[i] = history.Page{Channel: ranges[i].Channel} // again
	}
	var number, epoch, head int64
	var first, offset, timeMS pgtype.Int8 // not pointers, which would be allocated for each row
	var binary pgtype.Bool
	var from pgtype.Text
	for rows.Next() {
		var meta, data []byte
		if err := rows.Scan(&number, &epoch, &head, &first, &offset, &timeMS, &binary, &from, &meta, &data); err != nil {
			return err
		}
		p := &pages[q.numbers[number-1]]
		p.Exists, p.Epoch, p.Head, p.First = true, uint64(epoch), uint64(head), uint64(head)+1
		if first.Valid {
			p.First = uint64(first.Int64)
		}
		if offset.Valid {
			p.Events = append(p.Events, history.Event{
				Offset: uint64(offset.Int64), TimeMS: timeMS.Int64, Data: data, Binary: binary.Bool, From: from.String, Meta: meta,
			})
		}
	}
	for _, i := range q.numbers {
		pages[i].More = more(&ranges[i], &pages[i])
	}
	return rows.Err()
}

// more: without holes, the last event of a page that is not an end of the
// history has another behind it.
func more(r *history.Range, p *history.Page) bool {
	if len(p.Events) == 0 {
		return false
	}
	last := p.Events[len(p.Events)-1].Offset
	if r.Reverse {
		return last > p.First
	}
	return last < p.Head
}
