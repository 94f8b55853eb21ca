package table

import "time"

// quiet lists channels that were published on, until they have been quiet for a while:
// then their head goes on the bus once more, and an edge that lost the newest event
// learns of it from that. A channel is in the list once, so that the table bounds it; one
// that was let go is passed over when its turn comes. All wait equally long, so that the
// list is in order.
type quiet struct {
	after time.Duration
	list  []quietEntry
	first int // of list: those before it are gone
}

type quietEntry struct {
	e   *entry
	due time.Time
}

// quietSpare is how many entries an empty list keeps room for.
const quietSpare = 16 << 10

func (q *quiet) add(e *entry, now time.Time) {
	if len(q.list) == cap(q.list) && q.first > len(q.list)/2 {
		n := copy(q.list, q.list[q.first:])
		clear(q.list[n:])
		q.list, q.first = q.list[:n], 0
	}
	q.list = append(q.list, quietEntry{e, now.Add(q.after / 2)})
}

// due takes out the next one whose time has come; nil: there is none.
func (q *quiet) due(now time.Time) *entry {
	if q.first == len(q.list) || q.list[q.first].due.After(now) {
		return nil
	}
	e := q.list[q.first].e
	q.list[q.first] = quietEntry{}
	if q.first++; q.first == len(q.list) {
		q.list, q.first = q.list[:0], 0
		if cap(q.list) > quietSpare {
			q.list = nil // after a rush
		}
	}
	return e
}

// repeat sends heads of channels that have been quiet, paced.
func (s *shard) repeat(now time.Time) {
	budget := max(1, s.table.cfg.RepeatsPerSec/beatsPerSecond/len(s.table.shards))
	for budget > 0 {
		e := s.quiet.due(now)
		if e == nil {
			return
		}
		switch {
		case e.gone:
			e.quiet = false
		case now.Sub(e.LastPublish()) < s.quiet.after:
			s.quiet.add(e, now)
		default:
			e.quiet = false
			if env := e.Head(&s.step); env != nil {
				s.table.deps.Bus.Publish(env)
				s.table.metrics.headsRepeated.Inc()
				budget--
			}
		}
	}
}
