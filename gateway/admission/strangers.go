package admission

import "time"

// strangerMemory is how long clients of other regions that came on grants count
// against their part of the headroom: longer than an evacuation that asks again and
// again. Without it each round would get the part of what the rounds before had left.
const strangerMemory = 10 * time.Minute

// strangers counts clients of other regions that came on grants which have lapsed.
type strangers struct{ came []arrived }

// arrived is a sum over a few seconds.
type arrived struct {
	at time.Time
	n  int
}

func (s *strangers) add(n int, now time.Time) {
	const together = 10 * time.Second // bounds the list
	if last := len(s.came) - 1; last >= 0 && now.Sub(s.came[last].at) < together {
		s.came[last].n += n
		return
	}
	s.came = append(s.came, arrived{now, n})
}

func (s *strangers) count(now time.Time) int {
	n := 0
	for len(s.came) > 0 && now.Sub(s.came[0].at) >= strangerMemory {
		s.came = s.came[1:]
	}
	for _, a := range s.came {
		n += a.n
	}
	return n
}

// came is how many have come on g, as far as that can be told.
func (g *grant) came(now time.Time) int {
	if !g.confirmed {
		return 0
	}
	return g.used + g.unmovable - g.expected(now)
}

// freeFor is the room that clients of a region may still be granted: all that is free,
// or for strangers their part of what was free before any stranger came.
func (s *Grants) freeFor(region string, to Receiver, now time.Time) int {
	free := to.Headroom - s.Outstanding(now)
	if region != to.Region {
		came, held := s.strangers.count(now), 0
		for _, g := range s.order {
			if g.stranger {
				came += g.came(now)
				held += g.outstanding(now)
			}
		}
		free = min(free, (free+held+came)*to.ForeignPercent/100-held-came)
	}
	return max(free, 0)
}
