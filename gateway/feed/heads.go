package feed

import (
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// sweepStep is how many channels a sweep looks at in one beat.
	sweepStep = 10_000
	// silenceEvery is how often the silence of routers is looked at, and how often
	// the channels of a silent one become doubtful anew.
	silenceEvery = time.Second
	silentAgain  = 5 * time.Second
	// leastEase is what is left of the pace of checks that nobody answers, and the
	// step in which it comes back with each beat; easeEvery is how often it falls.
	leastEase = 0.05
	easeEvery = 500 * time.Millisecond
	// longestAgain bounds what one router may put off: the others' channels wait in
	// the same queue, and a loss has to be found within 30 s (I3).
	longestAgain = 10 * time.Second
)

// heads paces the checks of heads of a shard's channels; a silent loss of the
// newest event is found by nothing else. Those that are doubtful (a new interest,
// a new or silent owner, a connection that came back) go before the round that
// every channel takes part in.
type heads struct {
	rate     float64 // checks a second
	allowed  float64
	ease     float64 // of rate; below 1 while checks go unanswered
	easedAt  time.Time
	answers  int // since the last beat
	failures int
	next     time.Time // of the next beat
	last     time.Time // beat
	young    []later   // new interests, in order of time
	failed   []later   // checks without an answer, by when they are repeated
	doubts   []*feed
	cursor   int     // of the round, in shard.feeds
	round    float64 // checks that the round is due

	snapshot    *presence.Snapshot
	before      *presence.Snapshot // while a sweep compares owners
	sweep       int                // next of shard.feeds; -1: no sweep
	sweepAll    bool
	silent      map[string]bool    // ids of routers
	known       map[life]time.Time // since when routers are in the view
	silenceAt   time.Time
	silentAt    time.Time
	disruptions uint64
	disrupted   time.Time // the first that no sweep has answered; zero: none
	disruptedAt time.Time // the last
}

type later struct {
	f  *feed
	at time.Time
}

// life is one run of a router.
type life struct {
	id          string
	incarnation uint64
}

func newHeads(cfg *Config, shards int) heads {
	return heads{rate: float64(cfg.HeadRate) / float64(shards), ease: 1, sweep: -1}
}

// fresh is called for a new interest: the bus may not know of it everywhere.
func (h *heads) fresh(f *feed, now time.Time) { h.young = append(h.young, later{f, now}) }

// again is called for a check that had no answer, to be repeated after a second or
// when the router said, within bounds. The queue stays in order: nobody goes before who came before.
func (h *heads) again(f *feed, now time.Time, after time.Duration) {
	at := now.Add(min(max(after, time.Second), longestAgain))
	if n := len(h.failed); n > 0 && at.Before(h.failed[n-1].at) {
		at = h.failed[n-1].at
	}
	f.checkAt = true
	h.failed = append(h.failed, later{f, at})
}

// hurry makes those that wait to be checked again due: there are other routers.
func (h *heads) hurry(now time.Time) {
	for i := range h.failed {
		h.failed[i].at = now
	}
}

// moved is called when a feed takes a place before its own in the list: walks
// that have passed the new place and not the old one would miss it.
func (h *heads) moved(f *feed, to int, now time.Time) {
	from := int(f.index)
	if to < h.cursor && from >= h.cursor || h.sweep >= 0 && to < h.sweep && from >= h.sweep {
		h.suspectIt(f)
	}
}

func (h *heads) suspectIt(f *feed) {
	if !f.doubtful && !f.checkAt {
		f.doubtful = true
		h.doubts = append(h.doubts, f)
	}
}

// beat goes on with everything that is paced.
func (s *shard) beat() {
	h, now := &s.heads, s.step.now
	elapsed := time.Second
	if !h.last.IsZero() {
		elapsed = min(now.Sub(h.last), time.Second)
	}
	h.last, h.next = now, now.Add(beat)
	if len(s.feeds) == 0 {
		h.next = now.Add(idleBeat)
	}
	s.repairs.refill(elapsed.Seconds())
	pace := float64(s.cfg.RepeatRate) / float64(s.cfg.ShardCount())
	s.step.again = min(s.step.again+pace*elapsed.Seconds(), max(pace/10, 1))
	s.grant()
	s.watch()
	s.sweep()
	h.suspectDue(now, s.cfg.HeadDelay)
	h.adapt(now)
	h.allowed = min(h.allowed, 1) + h.rate*h.ease*elapsed.Seconds() // no more than a beat is saved up
	s.checkSuspects()
	s.checkRound(elapsed)
}

// adapt lowers the pace while most checks go unanswered and raises it again with the
// first answers: routers that cannot keep up would be kept from it by those who ask
// again.
func (h *heads) adapt(now time.Time) {
	switch {
	case h.failures > h.answers:
		if now.Sub(h.easedAt) >= easeEvery {
			h.ease, h.easedAt = max(h.ease/2, leastEase), now
		}
	case h.answers > 0:
		h.ease = min(h.ease+leastEase, 1)
	}
	h.answers, h.failures = 0, 0
}

func (h *heads) suspectDue(now time.Time, delay time.Duration) {
	h.young = h.due(h.young, now, delay, false)
	h.failed = h.due(h.failed, now, 0, true)
}

func (h *heads) due(queue []later, now time.Time, delay time.Duration, failed bool) []later {
	n := 0
	for n < len(queue) && now.Sub(queue[n].at) >= delay {
		if failed {
			queue[n].f.checkAt = false
		}
		h.suspectIt(queue[n].f)
		queue[n].f = nil
		n++
	}
	if n == len(queue) {
		return nil
	}
	return queue[n:]
}

func (s *shard) checkSuspects() {
	h := &s.heads
	n := 0
	for n < len(h.doubts) && h.allowed >= 1 {
		s.check(h.doubts[n])
		h.doubts[n] = nil
		n++
	}
	if h.doubts = h.doubts[n:]; len(h.doubts) == 0 {
		h.doubts = nil
	}
}

// checkRound goes on with the round, so fast that it takes HeadInterval.
func (s *shard) checkRound(elapsed time.Duration) {
	h := &s.heads
	h.round = min(h.round+float64(len(s.feeds))*elapsed.Seconds()/s.cfg.HeadInterval.Seconds(), float64(len(s.feeds)))
	for h.round >= 1 && h.allowed >= 1 {
		if h.cursor >= len(s.feeds) {
			h.cursor = 0
		}
		f := s.feeds[h.cursor]
		h.cursor++
		h.round--
		if !f.doubtful && !f.checkAt {
			f.doubtful = true
			s.check(f)
		}
	}
}

func (s *shard) check(f *feed) {
	if f.gone || f.sinks.empty() {
		f.doubtful = false
		return
	}
	if f.deaf {
		s.renew(f)
	}
	if !f.known {
		f.doubtful = false // its pull asks, and goes on asking
		s.heads.again(f, s.step.now, s.cfg.HeadDelay)
		return
	}
	s.heads.allowed--
	f.askHead(&s.step)
	s.finish(f)
}

// watch looks for what makes channels doubtful.
func (s *shard) watch() {
	h, now := &s.heads, s.step.now
	_, dropped := s.backlog.state()
	if n := s.bus.Disruptions(s.id) + dropped; n != h.disruptions {
		h.disruptions, h.disruptedAt = n, now
		if h.disrupted.IsZero() {
			h.disrupted = now // those that go on do not put the sweep off
		}
	}
	if !h.disrupted.IsZero() && now.Sub(h.disrupted) >= s.cfg.HeadDelay {
		if h.disruptedAt.After(h.disrupted) {
			h.disrupted = h.disruptedAt // one more, for the last
		} else {
			h.disrupted = time.Time{}
		}
		h.sweep, h.sweepAll = 0, true
	}
	if s.cfg.View == nil {
		return
	}
	if now := s.cfg.View.Snapshot(); now != h.snapshot {
		was := h.snapshot
		h.snapshot = now
		if was == nil || was.Revision() != now.Revision() {
			if h.before == nil {
				h.before = was
			}
			h.sweep = 0
			h.hurry(s.step.now)
			s.hurry()
		}
	}
	if now.Sub(h.silenceAt) >= silenceEvery {
		h.silenceAt = now
		s.listen()
	}
}

// listen finds the routers that have fallen silent on the bus, or speak again:
// either way their events may have been lost.
func (s *shard) listen() {
	h, now := &s.heads, s.step.now
	silent := make(map[string]bool)
	known := make(map[life]time.Time)
	for _, m := range h.snapshot.Routers() {
		since, ok := h.known[life{m.Id, m.Incarnation}]
		if !ok {
			since = now
		}
		known[life{m.Id, m.Incarnation}] = since
		last := s.cfg.View.LastHeard(presence.Key{Role: gatewayv1.Role_ROLE_ROUTER, ID: m.Id})
		if last.Before(since) {
			last = since // never heard is silent too, in time
		}
		if now.Sub(last) >= s.cfg.SilentAfter {
			silent[m.Id] = true
		}
	}
	h.known = known
	same := len(silent) == len(h.silent)
	for id := range silent {
		same = same && h.silent[id]
	}
	if same && (len(silent) == 0 || now.Sub(h.silentAt) < silentAgain) {
		return
	}
	for id := range h.silent {
		silent[id] = true // this once more: it speaks again
	}
	h.silent, h.silentAt, h.sweep = silent, now, 0
}

// sweep goes on over the channels to find those that have become doubtful.
func (s *shard) sweep() {
	h := &s.heads
	if h.sweep < 0 {
		return
	}
	end := min(h.sweep+sweepStep, len(s.feeds))
	for _, f := range s.feeds[h.sweep:max(end, h.sweep)] {
		if h.sweepAll || h.ownerSuspect(f.channel) {
			h.suspectIt(f)
		}
	}
	if h.sweep = end; end == len(s.feeds) {
		h.sweep, h.sweepAll, h.before = -1, false, nil
	}
}

func (h *heads) ownerSuspect(channel string) bool {
	if h.snapshot == nil {
		return false
	}
	owner := h.snapshot.Owner(channel)
	if owner == nil {
		return false
	}
	if h.silent[owner.Id] {
		return true
	}
	if h.before == nil {
		return false
	}
	was := h.before.Owner(channel)
	return was == nil || was.Id != owner.Id || was.Incarnation != owner.Incarnation
}

// hurry lets those who wait for a router ask again within a second.
func (s *shard) hurry() {
	waiting := append([]*feed(nil), s.timers...)
	for _, f := range waiting {
		f.hurry(&s.step)
		s.finish(f)
	}
}
