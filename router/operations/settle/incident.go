package settle

import (
	"math"
	"slices"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	// calm is how long the rate must be the usual one.
	calm = 5 * perSecond
	// before is what the usual rate is the median of.
	before = 300 * perSecond
	// firstBack is the longest wait for the first sign of those who were displaced:
	// clients that heard nothing find out by their pings, within 40 s. A region in
	// which they have not begun to come has not settled.
	firstBack = 60 * perSecond
	// measured is how long an incident is followed; its windows then begin to go.
	measured = 540 * perSecond
)

// Settled is one incident that has come to rest, told once.
type Settled struct {
	Region string
	After  time.Duration
}

// Lapsed is one cause five minutes after its start, told once.
type Lapsed struct {
	Region, Kind               string
	Displaced, Back, NeverBack uint64
}

// News is what a Step found out.
type News struct {
	Settled   []Settled
	Lapsed    []Lapsed
	Unsettled []string // regions of incidents given up after nine minutes
}

// Step looks at everything again; once a second will do.
func (t *Tracker) Step(now time.Time) (news News) {
	end := number(now) - lag
	t.forgetEdges(now)
	for _, r := range t.regions {
		t.findLosses(r, end)
	}
	t.findAway()
	for _, name := range t.Regions() {
		t.step(t.regions[name], end, &news)
	}
	return news
}

func (t *Tracker) step(r *region, end int64, news *News) {
	slices.SortFunc(r.causes, byStart)
	for _, c := range r.causes {
		if end-c.start < before-perSecond { // later the ring begins to lose what was before
			c.usual = r.usual(c.start)
		}
	}
	r.open = r.open[:0:0]
	var over []*cause
	for rest := r.causes; len(rest) > 0; {
		causes, settled := r.group(rest, end)
		rest = rest[len(causes):]
		i := t.incident(r, causes, settled, end)
		r.tell(i, causes, settled, end, news)
		if end-causes[0].start < measured {
			r.open = append(r.open, i)
			continue
		}
		if settled < 0 {
			news.Unsettled = append(news.Unsettled, r.name)
		}
		over = append(over, causes...)
		r.past = append(r.past, i)
	}
	for _, c := range over {
		if c.original == nil {
			t.unname(c)
		}
	}
	r.causes = slices.DeleteFunc(r.causes, func(c *cause) bool { return slices.Contains(over, c) })
	if n := len(r.past) - maxPast; n > 0 {
		r.past = slices.Delete(r.past, 0, n)
	}
}

// tell says each thing once: that an incident settled, ten seconds after it is
// certain, since late windows may still change it; what became of those displaced.
func (r *region) tell(i *routerv1.Incident, causes []*cause, settled, end int64, news *News) {
	if settled >= 0 && end >= settled+calm+10*perSecond && !causes[0].settled {
		for _, c := range causes {
			c.settled = true
		}
		news.Settled = append(news.Settled, Settled{r.name, time.Duration(settled-causes[0].start) * windowMS * time.Millisecond})
	}
	for n, c := range causes {
		if end >= c.start+backWithin && !c.lapsed && c.original == nil {
			c.lapsed = true
			m := i.Causes[n]
			news.Lapsed = append(news.Lapsed, Lapsed{r.name, m.Kind, m.Displaced, m.Back, m.NeverBack})
		}
	}
}

// usual is the median rate, a second, of the five minutes before a window. Seconds of
// which nothing is known had no arrivals: a cluster that has just been filled has no
// usual rate yet, and edges tell new routers what those missed.
func (r *region) usual(start int64) float64 {
	seconds := make([]uint64, 0, before/perSecond)
	for n := start - perSecond; n >= start-before; n -= perSecond {
		seconds = append(seconds, r.sum(n, n+perSecond, arrivals))
	}
	slices.Sort(seconds)
	return float64(seconds[(len(seconds)-1)/2]+seconds[len(seconds)/2]) / 2
}

// group takes the causes of one incident off the front (causes are by start): those
// that began before it had settled. settled < 0: it has not.
func (r *region) group(causes []*cause, end int64) ([]*cause, int64) {
	n := 1
	for {
		settled := r.settled(causes[:n], end)
		if n == len(causes) || settled >= 0 && causes[n].start >= settled {
			return causes[:n], settled
		}
		n++
	}
}

// settled finds the start of the first five seconds that are calm: not before the
// last of the causes, and not over before five seconds after the first displaced
// client came back or the rate rose. -1: not yet.
func (r *region) settled(causes []*cause, end int64) int64 {
	start, last := causes[0].start, causes[len(causes)-1].start
	q := r.quiet(causes[0].usual)
	sign := r.sign(causes, q, end)
	if sign < 0 {
		if end < last+firstBack {
			return -1
		}
		sign = start
	}
	for n := last; n+calm <= end; n++ {
		until := max(n+calm, sign+calm)
		if until > end {
			return -1
		}
		if !q.over(n, until) {
			continue
		}
		return n
	}
	return -1
}

// sign is the first window in which displaced clients are seen to come; -1: none.
func (r *region) sign(causes []*cause, q quiet, end int64) int64 {
	sign := int64(math.MaxInt64)
	for _, c := range causes {
		if c.original != nil {
			sign = min(sign, c.start)
		} else if first, ok := c.first[r]; ok {
			sign = min(sign, first)
		}
	}
	for n := causes[0].start; n+perSecond <= end && n < sign; n++ {
		if !q.second(n) {
			sign = n
		}
	}
	if sign == math.MaxInt64 {
		return -1
	}
	return sign
}

// quiet judges seconds by the usual rate.
type quiet struct {
	r        *region
	bound    float64 // new conns a second
	catching int64   // who is catching up at any time at the usual rate, half a second each
}

func (r *region) quiet(usual float64) quiet {
	return quiet{r, max(1.5*usual, usual+5), int64(math.Ceil(usual / 2))}
}

// second says that in the second from n on no more came than usual, and no more
// caught up.
func (q quiet) second(n int64) bool {
	return float64(q.r.sum(n, n+perSecond, arrivals)) <= q.bound && float64(q.r.sum(n, n+perSecond, caughtUp)) <= q.bound
}

// over says that it is quiet over all of [from, to).
func (q quiet) over(from, to int64) bool {
	for n := from; n < to; n++ {
		if s := q.r.slot(n); s != nil && s.sampled && s.catching > q.catching {
			return false
		}
		if (n-from)%perSecond == 0 && n+perSecond <= to && !q.second(n) {
			return false
		}
	}
	return true
}

// incident tells one.
func (t *Tracker) incident(r *region, causes []*cause, settled, end int64) *routerv1.Incident {
	start, until := causes[0].start, end
	i := &routerv1.Incident{Region: r.name, StartMs: uint64(start) * windowMS, UsualPerSecond: causes[0].usual}
	if settled >= 0 {
		until = settled
		i.SettledMs = uint64(settled) * windowMS
	}
	i.Admitted = r.sum(start, until, arrivals)
	i.Refused = r.sum(start, until, refused)
	for n := start; n < max(until, start+calm) && n < end; n++ {
		i.PeakPerSecond = max(i.PeakPerSecond, float64(r.sum(n, n+perSecond, arrivals)))
	}
	i.P50Ms, i.P95Ms, i.P99Ms = r.percentile(start, until, i.Admitted, 50), r.percentile(start, until, i.Admitted, 95), r.percentile(start, until, i.Admitted, 99)
	for _, c := range causes {
		i.Causes = append(i.Causes, t.tellCause(r, c, causes, end))
	}
	return i
}

// percentile is the time, ms from start to the end of a window, until so many per
// cent of the arrivals of [start, until) were there.
func (r *region) percentile(start, until int64, all, percent uint64) uint32 {
	need := (all*percent + 99) / 100
	if need == 0 {
		return 0
	}
	for n := start; n < until; n++ {
		if got := r.sum(n, n+1, arrivals); got >= need {
			return uint32(n+1-start) * windowMS
		} else {
			need -= got
		}
	}
	return 0
}

func (t *Tracker) tellCause(r *region, c *cause, causes []*cause, end int64) *routerv1.IncidentCause {
	m := &routerv1.IncidentCause{Kind: c.kind, Id: c.id, StartMs: uint64(c.start) * windowMS, Displaced: c.displaced(r)}
	m.Back = min(c.total(r, causes, end), m.Displaced)
	m.CaughtUp = m.Back
	// Nobody says whose catch-ups were finished: of those who came, as many are behind
	// as the region has behind.
	came := r.sum(c.start, end, arrivals)
	if n := uint64(max(r.catching, 0)); n > 0 && came > 0 {
		m.CaughtUp -= min(m.Back, uint64(math.Ceil(float64(m.Back)*float64(min(n, came))/float64(came))))
	}
	if end >= c.start+backWithin {
		m.NeverBack = m.Displaced - m.Back
	}
	return m
}

// total is how many resumes count for a cause.
func (c *cause) total(r *region, causes []*cause, end int64) uint64 {
	own := c
	if c.original != nil {
		own = c.original
	}
	total := uint64(0)
	if own.kind != kindUnknown {
		for _, n := range own.back {
			total += n
		}
		// An edge that was lost while it left: those that it had told come first.
		for _, x := range causes {
			if x == c {
				break
			}
			for name := range c.shares {
				if x.shares[name] != nil && x.kind != c.kind {
					total -= min(total, x.displaced(r))
					break
				}
			}
		}
		return total
	}
	for n := c.start; n < min(c.start+backWithin, end); n++ {
		s := r.slot(n)
		if s == nil {
			continue
		}
		for name, count := range s.from {
			if !slices.ContainsFunc(causes, func(x *cause) bool { return x.shares[name] != nil }) {
				total += uint64(count)
			}
		}
	}
	return total
}
