package admission

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	// Horizon is how far out a slot may be.
	Horizon = 30 * time.Second
	// PassLife is how long after its slot a pass is good.
	PassLife = 5 * time.Second
	// slotShare of a lane's rate is given out in slots: those who cannot obey must
	// not starve behind those who can.
	slotShare = 0.9
	// nearest is the least wait that is told: nearer ones are not worth a trip.
	nearest = 250 * time.Millisecond
	// showMemory halves what is known about who comes to his slot.
	showMemory = 3 * time.Second
)

// slots is the timetable of one lane. Times in due rise.
type slots struct {
	due     []time.Time // given out and not yet due
	next    time.Time   // the first free one
	renewal time.Time   // the first free one for passes that could not be served

	// Who shows up: decayed sums. Passes of other edges shown here stand for ours
	// shown there.
	came    float64
	shown   float64
	updated time.Time
}

// give takes the next free slot that is not before earliest; false: none within the
// horizon.
func (s *slots) give(rateThen func(time.Duration) float64, earliest, now time.Time) (time.Time, bool) {
	at := latest(s.next, earliest)
	at = latest(at, now.Add(nearest))
	rate := rateThen(at.Sub(now))
	if rate <= 0 || at.Sub(now) > Horizon {
		return time.Time{}, false
	}
	s.next = at.Add(seconds(1 / (rate * slotShare)))
	s.due = append(s.due, at)
	return at, true
}

// renew gives a pass that could not be served another slot, ahead of all that were
// given since. It always finds one.
func (s *slots) renew(rateThen func(time.Duration) float64, now time.Time, r *rand.Rand) time.Time {
	at := latest(s.renewal, now.Add(nearest))
	rate := rateThen(at.Sub(now))
	if rate <= 0 || at.Sub(now) > Horizon {
		return now.Add(spread(r))
	}
	s.renewal = at.Add(seconds(1 / rate))
	return at
}

// turn moves what is due out of the timetable.
func (s *slots) turn(now time.Time) {
	n := 0
	for n < len(s.due) && !s.due[n].After(now) {
		n++
	}
	s.due = s.due[n:]
	if len(s.due) == 0 {
		s.due = nil
	}
	if s.updated.IsZero() {
		s.updated = now
	}
	if dt := now.Sub(s.updated); dt > 0 {
		keep := math.Exp2(-dt.Seconds() / showMemory.Seconds())
		s.came, s.shown, s.updated = s.came*keep, s.shown*keep, now
	}
	s.came += float64(n)
}

// expected is how many passes will come within d.
func (s *slots) expected(now time.Time, d time.Duration) float64 {
	s.turn(now)
	until := now.Add(d)
	lo, hi := 0, len(s.due)
	for lo < hi {
		if mid := (lo + hi) / 2; s.due[mid].After(until) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	const prior = 5 // trust, until some did not come
	return float64(lo) * min(1, (s.shown+prior)/(s.came+prior))
}

// spread is the wait of whoever gets no slot.
func spread(r *rand.Rand) time.Duration {
	return Horizon/2 + time.Duration(r.Int64N(int64(Horizon/2)))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
