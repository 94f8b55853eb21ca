package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"

	"github.com/spillway-io/spillway/router/history"
)

const (
	// shortTail is up to how many events behind the head a range is read newest
	// first and turned round; longer ones are found first, then read in order.
	shortTail = 32
	// readChunk is how many events of a longer one are found at a time: a page
	// that is full sooner has looked at no more than these in vain.
	readChunk = 256
)

// reader is one connection that reads, owned by who took it from Store.readers.
// The writer has one as well, over its own connection.
type reader struct {
	conn *conn

	byName *stmt
	byID   *stmt
	repeat *stmt
	event  *stmt
	link   *stmt // an event without what it carries
	marked *stmt

	due    *stmt // channels by the age of their oldest event
	oldKey *stmt
	looked *stmt // how far retention by size has looked
	walk   *stmt
	newest *stmt
	scan   *stmt
	sized  *stmt
	idle   *stmt // channels by how long nobody has used them
	noted  *stmt // since when a channel is idle
	early  *stmt
}

// value is what a row has in a column.
type value = driver.Value

func newReader(c *conn) (*reader, error) {
	p := preparer{conn: c}
	const columns = `h.id, h.epoch, h.head, h.last, h.first, h.oldest_ms`
	r := &reader{
		conn:   c,
		byName: p.prepare(`SELECT ` + columns + ` FROM names n JOIN heads h ON h.id = n.id WHERE n.channel = ?`),
		byID:   p.prepare(`SELECT ` + columns + ` FROM heads h WHERE h.id = ?`),
		repeat: p.prepare(`SELECT offset FROM repeats WHERE channel_id = ? AND scope = ? AND key = ?`),
		event:  p.prepare(`SELECT channel_id, offset, prev, time_ms, binary, sender, meta, data FROM log WHERE id = ?`),
		link:   p.prepare(`SELECT channel_id, offset, prev, time_ms FROM log WHERE id = ?`),
		marked: p.prepare(`SELECT place FROM marks WHERE channel_id = ? AND offset = ?`),
		due:    p.prepare(`SELECT id FROM heads WHERE namespace = ? AND oldest_ms < ? ORDER BY oldest_ms LIMIT ?`),
		oldKey: p.prepare(`SELECT 1 FROM repeats WHERE time_ms < ? LIMIT 1`),
		looked: p.prepare(`SELECT rules, walked, scanned, (SELECT coalesce(max(id), 0) FROM log) FROM retention`),
		walk:   p.prepare(`SELECT id, namespace, head, first FROM heads WHERE id > ? ORDER BY id LIMIT ?`),
		newest: p.prepare(`SELECT coalesce(max(id), 0) FROM log`),
		scan:   p.prepare(`SELECT channel_id FROM log WHERE id > ? AND id <= ?`),
		sized:  p.prepare(`SELECT id, namespace, head, first FROM heads WHERE id = ?`),
		idle:   p.prepare(`SELECT id FROM heads WHERE idle_ms <= ? ORDER BY idle_ms LIMIT ?`),
		early:  p.prepare(`SELECT id FROM heads WHERE idle_ms > ? ORDER BY idle_ms LIMIT ?`),
		noted:  p.prepare(`SELECT h.id, h.idle_ms FROM names n JOIN heads h ON h.id = n.id WHERE n.channel = ? AND h.idle_ms IS NOT NULL`),
	}
	return r, p.err
}

// row of a channel: first..head are stored, last is where head is in the log.
type row struct {
	id, epoch, head, last, first int64
	oldestMS                     int64 // of first; of no meaning if nothing is stored
}

// head of a channel by its name; nil: it has none.
func (r *reader) head(channel string) (*row, error) { return readRow(r.byName.one(channel)) }

func readRow(v []value, err error) (*row, error) {
	if err != nil || v == nil {
		return nil, err
	}
	c := &row{id: v[0].(int64), epoch: v[1].(int64), head: v[2].(int64), last: v[3].(int64), first: v[4].(int64)}
	c.oldestMS, _ = v[5].(int64)
	return c, nil
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
	c, err := r.head(rng.Channel)
	if err != nil || c == nil {
		return err
	}
	p.Exists, p.Epoch, p.Head, p.First = true, uint64(c.epoch), uint64(c.head), uint64(c.first)
	if rng.Reverse {
		newest := c.head
		if rng.Before != 0 {
			newest = min(newest, history.Signed(rng.Before)-1)
		}
		err = r.backward(ctx, c, newest, rng, p)
	} else {
		err = r.forward(ctx, c, max(c.first, history.Signed(min(rng.After, history.MaxOffset))+1), rng, p)
	}
	p.More = more(rng, p)
	return err
}

// backward reads newest, newest-1, ... as far as the range goes.
func (r *reader) backward(ctx context.Context, c *row, newest int64, rng *history.Range, p *history.Page) error {
	if newest < c.first {
		return nil
	}
	place, err := r.find(c, newest)
	if err != nil {
		return err
	}
	for size, offset := 0, newest; offset >= c.first && len(p.Events) < rng.Limit; offset-- {
		e, prev, err := r.at(c, place, offset)
		if err != nil {
			return err
		}
		if size += e.Size(); overfull(rng, p, size) {
			return nil
		}
		p.Events = append(p.Events, e)
		place = prev
		if len(p.Events)%lookEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// forward reads oldest, oldest+1, ... as far as the range goes.
func (r *reader) forward(ctx context.Context, c *row, oldest int64, rng *history.Range, p *history.Page) error {
	if n := c.head - oldest + 1; n <= shortTail && n <= int64(rng.Limit) {
		var tail history.Page
		all := history.Range{Limit: int(n), MaxBytes: rng.MaxBytes}
		if err := r.backward(ctx, c, c.head, &all, &tail); err != nil || len(tail.Events) == int(n) {
			slices.Reverse(tail.Events)
			p.Events = tail.Events
			return err
		} // it does not fit: which events do, only their order tells
	}
	size := 0
	for oldest <= c.head && len(p.Events) < rng.Limit {
		places, err := r.places(c, oldest, min(c.head, oldest+min(readChunk, int64(rng.Limit-len(p.Events)))-1))
		if err != nil {
			return err
		}
		for i := range places {
			e, _, err := r.at(c, places[i].place, oldest)
			if err != nil {
				return err
			}
			if size += e.Size(); overfull(rng, p, size) {
				return nil
			}
			p.Events = append(p.Events, e)
			oldest++
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// overfull: another event makes the page's events size bytes, which is too much.
func overfull(rng *history.Range, p *history.Page, size int) bool {
	return rng.MaxBytes > 0 && size > rng.MaxBytes && len(p.Events) > 0
}

// at reads the event of c that is at a place of the log, and where the one
// before it is.
func (r *reader) at(c *row, place, offset int64) (history.Event, int64, error) {
	v, err := r.event.one(place)
	if err == nil {
		err = checkPlace(v, c, place, offset)
	}
	if err != nil {
		return history.Event{}, 0, err
	}
	e := history.Event{Offset: uint64(offset), TimeMS: v[3].(int64), Binary: v[4].(int64) != 0, From: v[5].(string)}
	e.Meta, _ = v[6].([]byte)
	if e.Data, _ = v[7].([]byte); e.Data == nil {
		e.Data = []byte{} // how the driver gives an empty blob
	}
	return e, v[2].(int64), nil
}

// checkPlace tells a file that somebody else has changed from an answer.
func checkPlace(v []value, c *row, place, offset int64) error {
	if v == nil || v[0].(int64) != c.id || v[1].(int64) != offset {
		return fmt.Errorf("the file is damaged: event %d of channel %d is not at %d of the log", offset, c.id, place)
	}
	return nil
}

// place of an event in the log, and its time.
type place struct{ place, timeMS int64 }

// find goes down from the head, or from a mark near enough.
func (r *reader) find(c *row, offset int64) (int64, error) {
	at, from := c.last, c.head
	if up := (offset + markEvery - 1) / markEvery * markEvery; up < from {
		v, err := r.marked.one(c.id, up)
		if err != nil {
			return 0, err
		}
		if v == nil {
			return 0, fmt.Errorf("the file is damaged: event %d of channel %d has no mark", up, c.id)
		}
		at, from = v[0].(int64), up
	}
	for ; from > offset; from-- {
		link, err := r.linkAt(c, at, from)
		if err != nil {
			return 0, err
		}
		at = link[2].(int64)
	}
	return at, nil
}

func (r *reader) linkAt(c *row, at, offset int64) ([]value, error) {
	v, err := r.link.one(at)
	if err == nil {
		err = checkPlace(v, c, at, offset)
	}
	return v, err
}

// places finds oldest..newest, which must be stored, in that order.
func (r *reader) places(c *row, oldest, newest int64) ([]place, error) {
	at, err := r.find(c, newest)
	if err != nil {
		return nil, err
	}
	places := make([]place, newest-oldest+1)
	for offset := newest; offset >= oldest; offset-- {
		link, err := r.linkAt(c, at, offset)
		if err != nil {
			return nil, err
		}
		places[offset-oldest] = place{at, link[3].(int64)}
		at = link[2].(int64)
	}
	return places, nil
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
