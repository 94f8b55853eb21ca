package drain

import "time"

// pool is the grants of one round behind a balancer that spreads blindly: each
// receiver gets the same, so the smallest grant and the slowest rate count for all.
type pool []*grant

// pools groups what is held by round; a round with an open question is no pool yet.
func (p *Plan) pools() []pool {
	var pools []pool
	open := make(map[int]bool)
	at := make(map[int]int)
	for _, g := range p.grants {
		open[g.round] = open[g.round] || g.state != grantHeld
	}
	for _, g := range p.grants {
		if open[g.round] || g.state != grantHeld || g.keep.Movable == 0 {
			continue
		}
		i, ok := at[g.round]
		if !ok {
			i = len(pools)
			at[g.round], pools = i, append(pools, nil)
		}
		pools[i] = append(pools[i], g)
	}
	return pools
}

func (q pool) least() (movable int, rate float64, start time.Time) {
	movable, rate, start = q[0].movable, q[0].rate(), q[0].start
	for _, g := range q[1:] {
		movable, rate, start = min(movable, g.movable), min(rate, g.rate()), later(start, g.start)
	}
	return movable, rate, start
}

// moves is how many of the pool's moves have their slots before until.
func (q pool) moves(now, until time.Time) int {
	movable, rate, start := q.least()
	return fit(movable*len(q), rate*float64(len(q)), later(later(now, start), q[0].movePace.next), until)
}

// slots takes the next slots of the pool, n at most.
func (q pool) slots(now time.Time, n int) (count int, first time.Time, every time.Duration) {
	movable, rate, start := q.least()
	every = interval(rate * float64(len(q)))
	count, first = q[0].movePace.slots(now, start, every, min(n, movable*len(q)))
	// Whose turn it is goes round: the fullest pays first.
	for range count {
		most := q[0]
		for _, g := range q[1:] {
			if g.movable > most.movable {
				most = g
			}
		}
		most.movable--
	}
	return count, first, every
}

// over says that one grant of the pool is used up, so that nothing more may come out
// of the others.
func (q pool) over() bool {
	movable, _, _ := q.least()
	return movable <= 0
}
