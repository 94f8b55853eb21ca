package admission

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arrival is somebody whose request has been read.
type Arrival struct {
	ID    uint64 // the caller's; not used twice while it waits
	Lane  Lane   // LaneFresh without a good ticket
	Obeys bool   // offered a spillway subprotocol: can read and keep a slot
	Move  *Move  // LaneMoved only
	Pass  *Pass  // nil: none, or not a good one
}

// Move is what a moved ticket says.
type Move struct {
	Operation string
	Edge      string    // that it comes from
	Until     time.Time // end of its slot; zero: none
	Anywhere  bool      // sent to one address: any grant of the operation will do
	Mark      uint64    // of the ticket, which is good once; 0: not known
}

// Pass is what a refused client was given, here or at another edge of the region.
type Pass struct {
	Nonce uint64
	Slot  time.Time
}

// Decision is what becomes of an arrival.
type Decision struct {
	ID      uint64
	Verdict Verdict
	Lane    Lane // in which it was counted: a moved client without a grant is a resume
	Cause   Cause
	Waited  time.Duration
	// Of a refusal: when to come back; Slot is set if that is a slot, for which a pass
	// should be minted.
	After time.Duration
	Slot  time.Time
	// Elsewhere: another edge may have room; After is short.
	Elsewhere bool
	// Spent is the mark of a ticket that is good no more, for the region's other edges
	// (Gate.Spent); 0: none.
	Spent uint64
}

// Capacity is how many conns the edge may hold.
type Capacity struct {
	MaxConns int
	Margin   int // of them, kept free of fresh clients
}

// Gate decides arrivals. Not safe for concurrent use.
type Gate struct {
	settings Settings
	capacity Capacity
	region   string
	rand     *rand.Rand

	lanes    [numLanes]lane
	waiters  map[uint64]*waiter
	grants   *Grants
	spent    spent
	share    Share
	ceiling  ceiling
	drains   int  // edges known to be leaving
	draining bool // this one
	others   bool // another edge has room
	uneven   uneven
}

// lane is one way in. Newcomers wait behind passes.
type lane struct {
	bucket  bucket
	slots   slots
	passes  list
	waiting list
}

func (l *lane) count() int { return l.passes.n + l.waiting.n }

// New makes a gate with full buckets.
func New(s Settings, c Capacity, region string, r *rand.Rand, now time.Time) *Gate {
	g := &Gate{
		settings: s, capacity: c, region: region, rand: r,
		waiters: make(map[uint64]*waiter), grants: NewGrants(), spent: newSpent(),
		ceiling: newCeiling(now),
	}
	for _, l := range Lanes() {
		rate, burst := g.rate(l, now)
		g.lanes[l].bucket = newBucket(rate, burst, now)
	}
	return g
}

// Set changes the settings; who waits goes on waiting.
func (g *Gate) Set(s Settings, c Capacity, now time.Time) {
	g.settings, g.capacity = s, c
	g.rerate(now)
}

// See takes who is there: the serving and draining edges of the own region, this one
// included, and whether another edge has room now. Call it every second or so.
func (g *Gate) See(peers []Peer, othersHaveRoom bool, now time.Time) {
	g.share.Seen(peers, now)
	g.drains = 0
	for _, p := range peers {
		if p.Draining {
			g.drains++
		}
	}
	g.others = othersHaveRoom
	g.rerate(now)
}

// Observe feeds the adaptive ceiling. Call it a few times a second.
func (g *Gate) Observe(s Signals, now time.Time) {
	if g.ceiling.observe(s, now) {
		g.rerate(now)
	}
}

// SetDraining refuses every newcomer from now on, and grants nothing; false takes
// that back. Who waits is refused by the next Serve.
func (g *Gate) SetDraining(on bool) { g.draining = on }

func (g *Gate) rerate(now time.Time) {
	for _, l := range Lanes() {
		rate, burst := g.rate(l, now)
		g.lanes[l].bucket.set(rate, burst, now)
	}
}

// rate is a lane's rate and burst as they are now.
func (g *Gate) rate(l Lane, now time.Time) (rate, burst float64) {
	s := g.settings
	own, region, most := s.FreshPerSecond, s.RegionFreshPerSecond, s.FreshBurst
	switch l {
	case LaneMoved:
		return float64(s.MovedPerSecond), max(1, float64(s.MovedPerSecond)/10)
	case LaneResume:
		own, region, most = s.ResumePerSecond, s.RegionResumePerSecond, s.ResumeBurst
	}
	rate = g.share.of(own, region, now)
	if s.Adaptive {
		rate *= g.ceiling.factor
	}
	// In proportion: a hundred bursts at once would be no region-wide rate.
	return rate, max(1, float64(most)*rate/float64(own))
}

// rateThen tells the rate at which a lane will serve after a while.
func (g *Gate) rateThen(l *lane) func(time.Duration) float64 {
	return func(d time.Duration) float64 {
		if !g.settings.Adaptive {
			return l.bucket.rate
		}
		return l.bucket.rate / g.ceiling.factor * g.ceiling.then(d)
	}
}

// Ceiling is the part of the lanes' rates that is given out, 1: all.
func (g *Gate) Ceiling() float64 {
	if !g.settings.Adaptive {
		return 1
	}
	return g.ceiling.factor
}

// Arrive decides at once, or takes the client into the waiting room. conns are those
// held now, without the ones that no longer count.
func (g *Gate) Arrive(a Arrival, conns int, now time.Time) Decision {
	if g.draining {
		return g.elsewhere(a, a.Lane, CauseDraining)
	}
	w := &waiter{arrival: a, lane: a.Lane, deadline: now.Add(g.settings.Wait)}
	if w.lane == LaneMoved {
		w.grant = g.takeGrant(w, now)
	}
	if w.lane == LaneNone || w.lane == LaneMoved && w.grant == nil {
		w.lane = LaneResume // who comes on a lapsed grant is a resume
	}
	if g.showPass(w, now) {
		return early(w, now)
	}
	if !g.hasRoom(w, conns, now) {
		g.putBack(w)
		return g.elsewhere(a, w.lane, CauseFull)
	}
	l := &g.lanes[w.lane]
	if !g.settings.Enabled || l.bucket.ready(now) && l.serves(w) {
		if g.settings.Enabled {
			l.bucket.take()
		}
		return g.admit(w, now)
	}
	if !g.canWait(l, w, now) {
		return g.refuse(w, CauseRate, now)
	}
	g.waiters[a.ID] = w
	if w.pass {
		l.passes.push(w)
	} else {
		l.waiting.push(w)
	}
	return Decision{ID: a.ID, Verdict: Wait, Lane: w.lane}
}

// admit lets w in; its token is taken.
func (g *Gate) admit(w *waiter, now time.Time) Decision {
	g.grants.came(w.grant)
	return Decision{ID: w.arrival.ID, Verdict: Admit, Lane: w.lane, Spent: g.use(w, now)}
}

// TurnAway refuses an arrival for which the caller has no capacity of another kind.
func (g *Gate) TurnAway(a Arrival, now time.Time) Decision {
	w := &waiter{arrival: a, lane: a.Lane}
	if w.lane == LaneNone || w.lane == LaneMoved {
		w.lane = LaneResume
	}
	if g.showPass(w, now) {
		return early(w, now)
	}
	return g.refuse(w, CauseBusy, now)
}

// hasRoom: grants keep their room, and fresh clients leave the margin.
func (g *Gate) hasRoom(w *waiter, conns int, now time.Time) bool {
	switch {
	case !g.settings.Enabled, w.grant != nil:
		return conns < g.capacity.MaxConns
	case w.lane == LaneFresh:
		return conns+g.grants.Outstanding(now) < g.capacity.MaxConns-g.capacity.Margin
	}
	return conns+g.grants.Outstanding(now) < g.capacity.MaxConns
}

// serves says that nobody in the lane comes before w.
func (l *lane) serves(w *waiter) bool { return l.passes.n == 0 && (w.pass || l.waiting.n == 0) }

// canWait says whether the lane will serve w in time, those ahead and the passes that
// are due first. Who would wait in vain is refused at once.
func (g *Gate) canWait(l *lane, w *waiter, now time.Time) bool {
	if len(g.waiters) >= g.settings.MaxWaiting {
		return false
	}
	ahead := float64(l.passes.n)
	if !w.pass {
		ahead += float64(l.waiting.n) + l.slots.expected(now, g.settings.Wait)
	}
	return ahead+1-l.bucket.tokens <= l.bucket.rate*g.settings.Wait.Seconds()
}

// refuse gives a slot of his own to whoever can keep it.
func (g *Gate) refuse(w *waiter, cause Cause, now time.Time) Decision {
	renewed := w.pass && w.arrival.Obeys
	if !renewed {
		g.putBack(w)
	}
	if w.lane == LaneMoved {
		w.lane = LaneResume // no slot of its grant is left: it comes back as a resume
	}
	d := Decision{ID: w.arrival.ID, Lane: w.lane, Cause: cause}
	l := &g.lanes[w.lane]
	switch {
	case !w.arrival.Obeys:
	case renewed: // the new pass takes the place of the old one
		d.Slot, d.Spent = l.slots.renew(g.rateThen(l), now, g.rand), g.use(w, now)
	default:
		ahead := now
		if l.bucket.rate > 0 { // who is in the room is served or refused within Wait
			ahead = now.Add(min(seconds(float64(l.count())/l.bucket.rate), g.settings.Wait))
		}
		if g.uneven.longer(latest(l.slots.next, ahead).Sub(now)) {
			return g.elsewhere(w.arrival, w.lane, cause)
		}
		if slot, ok := l.slots.give(g.rateThen(l), ahead, now); ok {
			d.Slot = slot
		}
	}
	if d.Slot.IsZero() {
		d.After = spread(g.rand)
	} else {
		d.After = d.Slot.Sub(now)
	}
	return d
}

// elsewhere refuses where no rate of this edge helps.
func (g *Gate) elsewhere(a Arrival, l Lane, cause Cause) Decision {
	d := Decision{ID: a.ID, Lane: l, Cause: cause, Elsewhere: g.others}
	if g.others {
		d.After = nearest + time.Duration(g.rand.Int64N(int64(750*time.Millisecond)))
	} else {
		d.After = spread(g.rand)
	}
	return d
}

// Serve appends what becomes of those who wait: admitted while there are tokens,
// refused when they waited too long. conns as in Arrive.
func (g *Gate) Serve(dst []Decision, conns int, now time.Time) []Decision {
	for _, name := range Lanes() {
		l := &g.lanes[name]
		for _, q := range []*list{&l.passes, &l.waiting} {
			for w := q.first; w != nil; w = q.first {
				if g.demote(w) {
					continue
				}
				d, ok := g.serve(l, w, conns, now)
				if !ok {
					break
				}
				g.remove(w)
				d.Waited = now.Sub(w.deadline) + g.settings.Wait
				dst = append(dst, d)
				if d.Verdict == Admit {
					conns++
				}
			}
		}
	}
	return dst
}

// serve decides the first of a list, if it is time.
func (g *Gate) serve(l *lane, w *waiter, conns int, now time.Time) (Decision, bool) {
	switch {
	case g.draining:
		g.putBack(w)
		return g.elsewhere(w.arrival, w.lane, CauseDraining), true
	case g.hasRoom(w, conns, now) && l.bucket.ready(now):
		l.bucket.take()
		return g.admit(w, now), true
	case now.Before(w.deadline):
		return Decision{}, false
	case g.hasRoom(w, conns, now):
		return g.refuse(w, CauseWaited, now), true
	}
	g.putBack(w)
	return g.elsewhere(w.arrival, w.lane, CauseFull), true
}

// Gone takes a waiting client out that hung up.
func (g *Gate) Gone(id uint64) {
	if w := g.waiters[id]; w != nil {
		g.putBack(w)
		g.remove(w)
	}
}

func (g *Gate) remove(w *waiter) {
	w.list.remove(w)
	delete(g.waiters, w.arrival.ID)
}

// Next is when Serve may have something to decide; a large time: when somebody
// arrives.
func (g *Gate) Next(now time.Time) time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, name := range Lanes() {
		l := &g.lanes[name]
		if l.count() == 0 {
			continue
		}
		next = min(next, l.bucket.until(now))
		for _, q := range []*list{&l.passes, &l.waiting} {
			if q.first != nil {
				next = min(next, max(q.first.deadline.Sub(now), 0))
			}
		}
	}
	return next
}

// Advise says when a fresh client that asks before it connects should come: now, or
// at a slot.
func (g *Gate) Advise(conns int, now time.Time) Decision {
	w := &waiter{lane: LaneFresh, arrival: Arrival{Lane: LaneFresh, Obeys: true}}
	l := &g.lanes[LaneFresh]
	switch {
	case g.draining:
		return g.elsewhere(w.arrival, LaneFresh, CauseDraining)
	case !g.hasRoom(w, conns, now):
		return g.elsewhere(w.arrival, LaneFresh, CauseFull)
	case !g.settings.Enabled, g.canWait(l, w, now):
		return Decision{Verdict: Admit, Lane: LaneFresh}
	}
	return g.refuse(w, CauseRate, now)
}
