package admission_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// figures are what a storm came to.
type figures struct {
	displaced, out         int // lost a conn, and are not back
	attempts, gaveUp       int
	refusals, refusedFirst int
	slots                  int // refusals that told one
	wasted                 int // handshakes done for who had hung up
	misled                 int // orders to go to an edge known to drain or to be gone
	admissions             int
	worst                  time.Duration // longest wait for an edge's processor
	waits                  []float32     // seconds from loss to `connected`
	last                   time.Duration // when the last one came back
	arrivals, passes       []int32       // at all edges, by bucket
	admits                 []int32
	broken                 []string
}

const bucketTime = 200 * time.Millisecond

func count(into *[]int32, at time.Duration) {
	i := int(at / bucketTime)
	for len(*into) <= i {
		*into = append(*into, 0)
	}
	(*into)[i]++
}

func (s *storm) arrival()   { count(&s.arrivals, s.now) }
func (s *storm) passShown() { count(&s.passes, s.now) }

func (s *storm) back(c *client) {
	s.waits = append(s.waits, float32((s.now - c.lostAt).Seconds()))
	s.last, c.cameAt = s.now, s.now
}

func (s *storm) breaks(format string, args ...any) {
	if len(s.broken) < 5 {
		s.broken = append(s.broken, fmt.Sprintf("%v: ", s.now)+fmt.Sprintf(format, args...))
	}
}

// twin is another way to say burst + rate * T for every window: a bucket that leaks at
// the rate never holds more than the burst.
type twin struct {
	rate, burst, level float64
	at                 time.Duration
}

func newTwin(rate, burst float64) twin { return twin{rate: rate, burst: burst} }

// laneTwin is that of a lane of one of n edges, which share a region's rate and burst.
func laneTwin(own, region, burst, n int) twin {
	rate := float64(own)
	if region > 0 {
		rate = min(rate, float64(region)/float64(n))
	}
	return newTwin(rate, max(1, float64(burst)*rate/float64(own)))
}

func (w *twin) takes(now time.Duration) bool {
	w.level = max(w.level-w.rate*(now-w.at).Seconds(), 0) + 1
	w.at = now
	return w.level <= w.burst+1e-6
}

// admitted checks what the gate let in.
func (s *storm) admitted(e *edge, c *client, l admission.Lane) {
	s.admissions++
	count(&s.admits, s.now)
	if !e.twins[l].takes(s.now) {
		s.breaks("%s admits more than the %v lane's rate and burst", e.id, l)
	}
	if e.draining {
		s.breaks("%s admits while it drains", e.id)
	}
	if e.conns > e.room.MaxConns || l == admission.LaneFresh && e.conns > e.room.MaxConns-e.room.Margin {
		s.breaks("%s has %d conns in room for %d", e.id, e.conns, e.room.MaxConns)
	}
	if l != admission.LaneMoved {
		return
	}
	from := s.leavers[c.leaver-1].edge.id
	e.arrived[from]++
	if e.arrived[from] > e.promised(from) {
		s.breaks("%s admits %d from %s and has confirmed %d", e.id, e.arrived[from], from, e.promised(from))
	}
	second := int(s.now / time.Second)
	for len(e.seconds) <= second {
		e.seconds = append(e.seconds, 0)
	}
	e.seconds[second]++
}

// granted is one grant as the bus carried it.
type granted struct {
	from        string
	number      uint32
	rate        float64
	kept        bool
	movable     int
	start, last time.Duration
}

func (e *edge) offered(q *gatewayv1.GrantRequest, o *gatewayv1.GrantOffer) {
	if o.Movable > 0 && e.find(q.Edge, q.Number) == nil {
		e.grants = append(e.grants, granted{from: q.Edge, number: q.Number, rate: o.MovablePerSecond})
	}
}

func (e *edge) find(from string, number uint32) *granted {
	for i := range e.grants {
		if g := &e.grants[i]; g.from == from && g.number == number {
			return g
		}
	}
	return nil
}

func (e *edge) keeps(k *gatewayv1.GrantConfirm) {
	g := e.find(k.Edge, k.Number)
	if g == nil {
		return
	}
	if !g.kept {
		g.kept, g.start, g.last = true, e.now, e.now+time.Duration(k.LastSlotMs)*time.Millisecond
	}
	g.movable = int(k.Movable)
}

func (e *edge) promised(from string) int {
	n := 0
	for _, g := range e.grants {
		if g.kept && g.from == from {
			n += g.movable
		}
	}
	return n
}

// paced checks that in no second more moved clients came than the grants of that
// second allow; a hint takes up to 150 ms to become an arrival.
func (e *edge) paced() error {
	for second, n := range e.seconds {
		from, to := time.Duration(second)*time.Second, time.Duration(second+1)*time.Second
		rate, grants := 0.0, 0
		for _, g := range e.grants {
			if g.kept && g.start < to && g.last+time.Second > from {
				rate += g.rate
				grants++
			}
		}
		if most := 1.2*rate + float64(grants) + 1; float64(n) > most {
			return fmt.Errorf("%s: %d moved clients in second %d, granted %.1f/s in %d grants", e.id, n, second, rate, grants)
		}
	}
	return nil
}

// outcome sums up who was displaced.
type outcome struct {
	n                   int
	back                time.Duration // from the start until all were back
	p50, p99, max       float64
	gini, maxMean       float64
	refusedFirst        float64 // part of the displaced
	perAdmitted         float64 // refusals
	peakArrive, peakLet float64 // a second, over 200 ms, at all edges
}

func (s *storm) outcome(start time.Duration) outcome {
	o := outcome{n: s.displaced, back: s.last - start}
	w := slices.Sorted(slices.Values(s.waits))
	if len(w) == 0 {
		return o
	}
	sum, weighted := 0.0, 0.0
	for i, x := range w {
		sum += float64(x)
		weighted += float64(i+1) * float64(x)
	}
	n := float64(len(w))
	o.p50, o.p99, o.max = float64(w[len(w)/2]), float64(w[len(w)*99/100]), float64(w[len(w)-1])
	o.gini = 2*weighted/(n*sum) - (n+1)/n
	o.maxMean = o.max / (sum / n)
	o.refusedFirst = float64(s.refusedFirst) / float64(s.displaced)
	o.perAdmitted = float64(s.refusals) / float64(max(s.admissions, 1))
	o.peakArrive, o.peakLet = peak(s.arrivals), peak(s.admits)
	return o
}

func peak(buckets []int32) float64 {
	if len(buckets) == 0 {
		return 0
	}
	return float64(slices.Max(buckets)) / bucketTime.Seconds()
}

func (o outcome) String() string {
	return fmt.Sprintf("n %d, all back in %.1f s, wait p50 %.1f p99 %.1f max %.1f s, gini %.2f, max/mean %.1f, refused first %.1f %%, refusals per admitted %.2f, peak arrivals %.0f/s, admitted %.0f/s",
		o.n, o.back.Seconds(), o.p50, o.p99, o.max, o.gini, o.maxMean, 100*o.refusedFirst, o.perAdmitted, o.peakArrive, o.peakLet)
}

// kept reports broken promises.
func (s *storm) kept() {
	s.t.Helper()
	for _, b := range s.broken {
		s.t.Error(b)
	}
	if s.out > 0 {
		s.t.Errorf("%d of %d are never back", s.out, s.displaced)
	}
	if s.misled > 0 {
		s.t.Errorf("%d orders to go to an edge that leaves", s.misled)
	}
	for _, e := range s.edges {
		if err := e.paced(); err != nil {
			s.t.Error(err)
			return
		}
	}
}
