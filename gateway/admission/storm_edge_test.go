package admission_test

import (
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/gateway/admission"
)

const (
	serveEvery   = 2 * time.Millisecond   // the door looks into its waiting room no more often
	hearsDrain   = 100 * time.Millisecond // through membership
	hearsDeath   = 3 * time.Second
	refusalShare = 200 // a refusal costs this part of a handshake (21 us to 5 ms)
)

// edge is one gate as the door drives it.
type edge struct {
	*storm
	index  int32
	id     string
	region string
	offset time.Duration // its clock's
	gate   *admission.Gate
	set    admission.Settings
	room   admission.Capacity

	conns    int
	alive    bool
	died     time.Duration
	listed   bool // the balancer sends clients here
	draining bool
	since    time.Duration // of draining
	leaving  *leaver

	serveAt  time.Duration // 0: nobody waits
	decided  []admission.Decision
	busy     time.Duration // until then its processor has work
	work     []job         // admitted, their work not done; first come first served
	slowest  time.Duration // wait for the processor since the last look
	window   time.Duration // retry_window_ms
	headroom int           // as the last figure told
	returns  float64       // resumes a second, as the last figure told
	moved    float64
	backlog  time.Duration // as the last batch told

	twins   [4]twin // by lane: I5
	peak    int     // conns
	grants  []granted
	arrived map[string]int // moved ones, by the edge they come from
	seconds []int          // moved admissions of each second
}

type job struct {
	who     int32
	attempt uint32
	at      time.Duration
}

// setUp makes the gate of one of n edges of a region.
func (e *edge) setUp(set admission.Settings, room admission.Capacity, n int) {
	e.set, e.room = set, room
	e.gate = admission.New(set, room, e.region, rand.New(rand.NewPCG(e.rand.Uint64(), 7)), e.clock())
	e.headroom, e.returns, e.moved = room.MaxConns-room.Margin, float64(set.ResumePerSecond), float64(set.MovedPerSecond)
	e.arrived = make(map[string]int)
	e.twins[admission.LaneMoved] = newTwin(float64(set.MovedPerSecond), max(1, float64(set.MovedPerSecond)/10))
	e.twins[admission.LaneResume] = laneTwin(set.ResumePerSecond, set.RegionResumePerSecond, set.ResumeBurst, n)
	e.twins[admission.LaneFresh] = laneTwin(set.FreshPerSecond, set.RegionFreshPerSecond, set.FreshBurst, n)
}

func (e *edge) clock() time.Time { return born.Add(e.now + e.offset) }

// decide does what the gate says.
func (e *edge) decide(d admission.Decision) {
	who, attempt := int32(uint32(d.ID)), uint32(d.ID>>32)
	c := &e.clients[who]
	switch d.Verdict {
	case admission.Admit:
		e.conns++
		e.peak = max(e.peak, e.conns)
		e.admitted(e, c, d.Lane)
		c.admitted = true
		if e.cost == 0 {
			e.push(event{at: e.now + e.oneWay(), kind: evConnected, who: who, attempt: attempt})
			return
		}
		e.busy = max(e.busy, e.now) + e.cost
		e.work = append(e.work, job{who, attempt, e.now})
		e.push(event{at: e.busy, kind: evDone, who: e.index})
		e.push(event{at: c.dialed + handshakeTimeout, kind: evGiveUp, who: who, attempt: attempt})
	case admission.Wait:
		if e.serveAt == 0 || e.serveAt > e.now+serveEvery {
			e.serveIn(serveEvery)
		}
		if !c.policy.obeys() {
			e.push(event{at: c.dialed + handshakeTimeout, kind: evGiveUp, who: who, attempt: attempt})
		}
	default:
		e.busy = max(e.busy, e.now) + e.cost/refusalShare
		e.refused(who, e, d)
	}
}

// done is the end of a handshake's work. Who has hung up meanwhile is noticed only now:
// the work was for nothing.
func (e *edge) done() {
	j := e.work[0]
	e.work = e.work[1:]
	if !e.alive {
		return
	}
	e.slowest = max(e.slowest, e.now-j.at)
	e.worst = max(e.worst, e.now-j.at)
	if c := &e.clients[j.who]; c.attempt != j.attempt || c.trying != e.index {
		e.conns--
		e.wasted++
		return
	}
	e.push(event{at: e.now + e.oneWay(), kind: evConnected, who: j.who, attempt: j.attempt})
}

func (e *edge) serveIn(d time.Duration) {
	e.serveAt = e.now + d
	e.push(event{at: e.serveAt, kind: evServe, who: e.index})
}

func (e *edge) serve() {
	if e.serveAt != e.now || !e.alive {
		return
	}
	e.serveAt = 0
	e.decided = e.gate.Serve(e.decided[:0], e.conns, e.clock())
	for _, d := range e.decided {
		e.decide(d)
	}
	if next := e.gate.Next(e.clock()); next < time.Hour {
		e.serveIn(max(next, serveEvery))
	}
}

// shut and open are the begin and the end of a drain.
func (e *edge) shut() {
	e.draining, e.since = true, e.now
	e.gate.SetDraining(true)
	e.serveIn(serveEvery)
	e.after(e.reset, func() { e.listed = e.listed && !e.draining })
}

// seen is what others know of e.
func (e *edge) seen() (there, draining bool) {
	there = e.alive || e.now-e.died < hearsDeath
	return there, e.draining && e.now-e.since >= hearsDrain
}

// figure tells the load, looks around and feeds the ceiling, once a second.
func (e *edge) figure() {
	if !e.alive {
		return
	}
	e.push(event{at: e.now + time.Second, kind: evFigure, who: e.index})
	now := e.clock()
	var peers []admission.Peer
	others, returns := false, 0.0
	for _, o := range e.edges {
		there, draining := o.seen()
		if !there || o.region != e.region {
			continue
		}
		peers = append(peers, admission.Peer{ID: o.id, Draining: draining})
		if o != e && !draining {
			others = others || o.headroom > 0
			returns += o.returns
		}
	}
	e.gate.See(peers, others, now)
	e.gate.Observe(admission.Signals{Connect: e.slowest}, now)
	e.slowest = 0
	s := e.gate.Status(e.conns, now)
	e.headroom, e.returns, e.moved = s.Headroom, s.ResumePerSecond, s.MovedPerSecond
	e.window = 500 * time.Millisecond
	if returns > 0 {
		e.window = min(max(time.Duration(float64(e.conns)/returns*float64(time.Second)), e.window), 10*time.Second)
	}
}

// compare tells the backlog and hears the others', each 100 ms.
func (e *edge) compare() {
	if !e.alive {
		return
	}
	e.push(event{at: e.now + 100*time.Millisecond, kind: evCompare, who: e.index})
	n, sum := 0, time.Duration(0)
	backlog, _ := e.gate.Backlog(e.clock())
	if backlog == 0 && e.backlog == 0 {
		e.gate.Compare(0, false, e.clock())
		return
	}
	for _, o := range e.edges {
		there, draining := o.seen()
		if o != e && there && !draining && o.region == e.region && o.headroom > 0 {
			n++
			sum += o.backlog
		}
	}
	e.gate.Compare(sum/time.Duration(max(n, 1)), n > 0 && !e.alone, e.clock())
	e.after(e.between(time.Millisecond, 10*time.Millisecond), func() { e.backlog = backlog })
}
