package memory

import (
	"context"
	"fmt"

	"github.com/spillway-io/spillway/router/history"
)

// Read implements history.Store.
func (s *Store) Read(ctx context.Context, ranges []history.Range) ([]history.Page, error) {
	if err := history.CheckRanges(ranges); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer s.leave()
	pages := make([]history.Page, len(ranges))
	for i := range ranges {
		pages[i].Channel = ranges[i].Channel
		if c := s.channels[ranges[i].Channel]; c != nil {
			c.read(&ranges[i], &pages[i])
		}
	}
	return pages, nil
}

func (c *channel) read(r *history.Range, p *history.Page) {
	p.Exists, p.Epoch, p.Head = true, c.epoch, c.head
	p.First = c.first()
	inRange := c.inRange(r)
	size := 0
	for i := range inRange {
		e := &inRange[i]
		if r.Reverse {
			e = &inRange[len(inRange)-1-i]
		}
		size += e.Size()
		full := len(p.Events) == r.Limit || (r.MaxBytes > 0 && size > r.MaxBytes)
		if full && len(p.Events) > 0 {
			p.More = true
			return
		}
		p.Events = append(p.Events, clone(e))
	}
}

// inRange is the part of the events that r asks for, oldest first.
func (c *channel) inRange(r *history.Range) []history.Event {
	first := c.first()
	if r.Reverse {
		if r.Before == 0 || r.Before > c.head {
			return c.events
		}
		return c.events[:max(r.Before, first)-first]
	}
	if r.After >= c.head {
		return nil
	}
	return c.events[max(r.After+1, first)-first:]
}

// first is the oldest offset stored, head+1 if none is.
func (c *channel) first() uint64 { return c.head + 1 - uint64(len(c.events)) }
