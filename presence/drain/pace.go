package drain

import "time"

// pace hands out slots one after the other. Slots that were missed are not made up
// for: whoever paces arrivals by them must never see two seconds' worth in one.
type pace struct{ next time.Time }

// slots takes the next slots before now + Step, n at most. None lies before from,
// and none earlier than Step before now.
func (p *pace) slots(now, from time.Time, every time.Duration, n int) (count int, first time.Time) {
	late := now.Add(-Step)
	if p.next.Before(from) {
		p.next = from
	}
	if p.next.Before(late) {
		p.next = now
	}
	if latest := later(now, from).Add(Step + every); p.next.After(latest) {
		p.next = latest // it was slower when it chose
	}
	first = p.next
	if n <= 0 || !p.next.Before(now.Add(Step)) {
		return 0, first
	}
	if every <= 0 {
		return n, first
	}
	count = int((now.Add(Step).Sub(p.next) + every - 1) / every)
	count = min(count, n)
	p.next = p.next.Add(time.Duration(count) * every)
	return count, first
}

// evenly is slots for n that are to be spread from now to until.
func (p *pace) evenly(now, until time.Time, n int) (count int, first time.Time, every time.Duration) {
	if n > 0 {
		every = max(until.Sub(now), 0) / time.Duration(n)
	}
	count, first = p.slots(now, time.Time{}, every, n)
	return count, first, every
}

func interval(perSecond float64) time.Duration {
	return time.Duration(float64(time.Second) / perSecond)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
