package admission

import "time"

// spent remembers which tickets that are good once were used, by their marks: here, or
// at another edge as far as that was heard. What is not known any more is good again:
// it errs in favour of the client.
type spent struct {
	at      map[uint64]use
	order   []mark // from head on by time; some are stale
	head    int
	dropped uint64 // forgotten before their time
}

// use is a time in Unix milliseconds and, in its two lowest bits, the kind.
type use int64

type mark struct {
	mark uint64
	at   use
}

// Kinds of use. The zero value is none.
const (
	usedNot       use = iota
	usedHeld          // by one in the waiting room here: given back, or used
	usedHere          // told to the other edges
	usedElsewhere     // one of them told it
	usedKind      = 3
)

const (
	// spentLife is longer than any of them is good: a moved ticket for 10 s of its slot
	// and the grace of its grant, a pass for PassLife.
	spentLife = 30 * time.Second
	// maxSpent bounds them: more than 20,000 a second in the time that a pass is good.
	maxSpent   = 128 << 10
	spentBytes = 64 // of one, at most: measured 40 to 60
)

func newSpent() spent { return spent{at: make(map[uint64]use)} }

func (s *spent) kind(m uint64) use { return s.at[m] & usedKind }

// set notes a use; the time of the first one counts.
func (s *spent) set(m uint64, kind use, now time.Time) {
	if u, ok := s.at[m]; ok {
		s.at[m] = u&^usedKind | kind
		return
	}
	u := use(now.UnixMilli())<<2 | kind
	s.at[m] = u
	s.order = append(s.order, mark{m, u})
	s.expire(now)
}

// unset makes m good again.
func (s *spent) unset(m uint64) { delete(s.at, m) }

// expire forgets what is dead, and the oldest past the bound.
func (s *spent) expire(now time.Time) {
	dead := use(now.Add(-spentLife).UnixMilli())<<2 | usedKind
	for s.head < len(s.order) {
		first := s.order[s.head]
		full := len(s.order)-s.head > maxSpent
		if first.at > dead && !full {
			break
		}
		if u, ok := s.at[first.mark]; ok && u|usedKind == first.at|usedKind {
			delete(s.at, first.mark)
			if first.at > dead {
				s.dropped++
			}
		}
		s.head++
	}
	if s.head > len(s.order)/2 { // amortized: each is moved once
		s.order = s.order[:copy(s.order, s.order[s.head:])]
		s.head = 0
	}
}

func (s *spent) bytes() int { return len(s.order[s.head:]) * spentBytes }
