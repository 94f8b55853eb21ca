package table

import "time"

// A channel that is used again oftenAfter or later after it came is used often. Those that
// came for one question, or one publish, go first as long as they have a quarter of
// the bytes: a storm of returning clients, or a scan over a million channels, so lets go
// of itself and not of what is published on all day. Two questions in a row, as each
// client asks that comes back, are one use.
const oftenAfter = 10 * time.Second

// touch puts a channel to the front of its list.
func (s *shard) touch(e *entry) {
	if e.prev != nil {
		e.unlink()
	}
	e.used = s.step.Now
	if !e.often && e.used.Sub(e.came) >= oftenAfter {
		e.often = true
		s.ofOften += e.bytes
	}
	list := &s.once
	if e.often {
		list = &s.often
	}
	e.prev, e.next = list, list.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}

// shrink lets channels go until the shard is a sixteenth below its share, if the table
// is over its bound.
func (s *shard) shrink() {
	limit := s.table.cfg.CacheBytes / int64(len(s.table.shards))
	if s.bytes <= limit || s.table.cached.Load() <= s.table.cfg.CacheBytes {
		return
	}
	told := false
	for s.bytes > limit-limit/16 {
		often := s.bytes-s.ofOften <= limit/4
		e := s.idlest(often)
		if e == nil {
			e = s.idlest(!often)
		}
		if e == nil {
			return // all are busy: queues are bounded by themselves
		}
		if e.Volatile() && !told {
			told = true
			s.table.generation.Add(1) // its next epoch must be another
		}
		s.drop(e)
		s.table.metrics.evictions.Inc()
	}
}

// idlest is the least recently used channel that nothing waits for, of those used often or
// of the others.
func (s *shard) idlest(often bool) *entry {
	list := &s.once
	if often {
		list = &s.often
	}
	for e := list.prev; e != list; e = e.prev {
		if !e.busy() {
			return e
		}
	}
	return nil
}

// busy says that something refers to the channel.
func (e *entry) busy() bool { return e.listed || e.watched || e.Busy() }

func (s *shard) drop(e *entry) {
	e.gone = true
	e.unlink()
	delete(s.channels, e.Name())
	s.table.channels.Add(-1)
	s.count(e, -e.bytes)
	e.Let()
}
