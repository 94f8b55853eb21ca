package feed

import (
	"math/bits"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// feed is one channel: a pure state machine, driven by its shard. Every method
// that takes a step may change it and adds what follows to step.out.
//
//	unknown --first answer--> in order --jump--> hole (see repairState)
//	   ^                          ^                 |
//	   |                          +--filled / gap---+
//	   +-- the last subscriber leaves (it lingers, then is dropped)
//
// While unknown, events of the bus are held and epoch, seen are the highest of
// the bus. Once known: delivered <= seen, both in epoch.
type feed struct {
	channel   string
	epoch     uint64
	delivered uint64
	seen      uint64
	sinks     sinkSet
	work      *work // nil while quiet

	index    int32 // in shard.feeds
	known    bool  // delivered means something
	history  bool  // the namespace keeps history; of the last answer
	fresh    bool  // this epoch was not yet announced to live subscribers
	found    bool  // a check of the head found more than was delivered
	doubtful bool  // a check of the head is queued or under way
	checkAt  bool  // a check had no answer and is repeated when the router said, no sooner
	deaf     bool  // the bus refused our interest
	gone     bool  // dropped by the shard
	behind   uint8 // checks running that had to repair
}

// work is what a feed needs while it is not quiet.
type work struct {
	held      []Frame // beyond a hole (or of a feed still unknown); ascending, distinct
	recent    []Frame // delivered while groups wait; ends at delivered, no holes
	heldSize  int
	keptSize  int // of recent
	groups    []*group
	repair    repairState
	retries   uint8 // of the repair
	denied    uint8 // answers running that did not have what was seen
	repairAt  time.Time
	lingerAt  time.Time // zero: somebody is interested
	at        time.Time // when tick is wanted; zero: never
	heapIndex int       // in shard.timers; -1: not in it
}

// frameSize is what a held frame costs.
func frameSize(f Frame) int { return len(f.Text) + 32 }

func (f *feed) busy() *work {
	if f.work == nil {
		f.work = &work{heapIndex: -1}
	}
	return f.work
}

// rest lets go of work when nothing is left of it.
func (f *feed) rest() {
	if w := f.work; w != nil && len(w.held) == 0 && len(w.groups) == 0 && w.repair == repairNone &&
		w.lingerAt.IsZero() && w.heapIndex < 0 {
		f.work = nil
	}
}

// envelope takes what came on the bus.
func (f *feed) envelope(s *step, e *envelope) {
	switch {
	case e.epoch < f.epoch:
		s.count[countStale] += max(len(e.events), 1)
		return
	case e.epoch > f.epoch:
		f.newEpoch(s, e.epoch, min(e.base, e.head))
	}
	f.seen = max(f.seen, e.head)
	if f.sinks.empty() {
		s.count[countIdle] += len(e.events)
		return
	}
	var run []Frame
	for i, ev := range e.events {
		f.seen = max(f.seen, ev.Offset)
		switch {
		case !f.known || ev.Offset > f.delivered+1:
			f.flush(s, &run)
			f.hold(s, ev)
		case ev.Offset <= f.delivered:
			s.count[countDuplicates]++
		default:
			if run == nil {
				run = make([]Frame, 0, len(e.events)-i)
			}
			run = append(run, f.encode(s, ev))
			f.delivered++
		}
	}
	f.flush(s, &run)
	f.proceed(s)
}

func (f *feed) encode(s *step, ev *gatewayv1.BusEvent) Frame {
	return Frame{Offset: ev.Offset, Text: s.cfg.Encode(f.channel, f.epoch, ev)}
}

// flush delivers a run that delivered already counts.
func (f *feed) flush(s *step, run *[]Frame) {
	if len(*run) == 0 {
		return
	}
	f.delivered -= uint64(len(*run))
	f.advance(s, *run)
	*run = nil
}

// advance delivers frames; the first is delivered + 1 and they have no holes.
func (f *feed) advance(s *step, frames []Frame) {
	f.announce(s)
	s.do(action{kind: actLive, epoch: f.epoch, frames: frames, history: f.history})
	s.count[countEvents] += len(frames)
	f.delivered = frames[len(frames)-1].Offset
	f.seen = max(f.seen, f.delivered)
	if w := f.work; w != nil {
		w.retries, w.denied = 0, 0
		if len(w.groups) > 0 {
			f.keep(s, frames)
		}
	}
}

// announce tells live subscribers of a new epoch before its first event.
func (f *feed) announce(s *step) {
	if f.fresh {
		f.fresh = false
		s.do(action{kind: actGap, epoch: f.epoch, from: f.delivered, offset: f.delivered, reason: ReasonEpoch})
	}
}

// newEpoch forgets the run before. The new one is wanted from its first event
// on, behind base: who was live has been given what is older. Of a run that begins
// with nothing nothing is said until there is something to deliver.
func (f *feed) newEpoch(s *step, epoch, base uint64) {
	f.fresh = f.known
	f.epoch, f.delivered, f.seen = epoch, base, base
	if w := f.work; w != nil {
		f.dropHeld(s)
		f.dropRecent(s)
		w.retries, w.denied = 0, 0
	}
	if base > 0 {
		f.announce(s)
	}
}

// learn takes epoch and head of an answer. It reports false if the answer is
// older than what is known.
func (f *feed) learn(s *step, a *gatewayv1.Answer) bool {
	if a.Epoch < f.epoch || a.Epoch == 0 {
		return false
	}
	if a.Epoch > f.epoch {
		f.newEpoch(s, a.Epoch, min(a.Base, a.Head))
	}
	f.history = a.HasHistory
	f.seen = max(f.seen, a.Head)
	if !f.known && !f.sinks.empty() {
		f.known, f.delivered = true, a.Head // nobody is live yet
	}
	return true
}

// proceed delivers what is held and in order now, and starts or ends the clock of
// a hole. Called after everything that moves delivered or seen.
func (f *feed) proceed(s *step) {
	if !f.known {
		return
	}
	f.drain(s)
	w := f.work
	switch {
	case f.seen > f.delivered:
		if w = f.busy(); w.repair == repairNone {
			s.count[countHoles]++
			w.repair, w.repairAt = repairYoung, s.now.Add(s.cfg.HoleWait)
		}
	case w != nil && w.repair != repairAsked:
		if w.repair == repairYoung && f.found {
			f.found, f.behind = false, 0 // it was on its way
		}
		w.repair = repairNone
	}
}

// tick does what is due.
func (f *feed) tick(s *step) {
	w := f.work
	if w == nil {
		return
	}
	if f.sinks.empty() && !w.lingerAt.IsZero() && !s.now.Before(w.lingerAt) {
		w.lingerAt = time.Time{}
		s.do(action{kind: actDrop})
		return
	}
	if (w.repair == repairYoung || w.repair == repairResting) && !s.now.Before(w.repairAt) {
		f.wantRepair(s)
	}
	for _, g := range w.groups {
		if !g.asked && !s.now.Before(g.retryAt) {
			f.repeatGroup(s, g)
		}
	}
}

// hurry brings forward what waits for a router: the view has changed.
func (f *feed) hurry(s *step) {
	w := f.work
	if w == nil {
		return
	}
	soon := func(at time.Time) time.Time {
		if t := s.now.Add(s.jitter(time.Second)); t.Before(at) {
			return t
		}
		return at
	}
	if w.repair == repairResting {
		w.repairAt = soon(w.repairAt)
	}
	for _, g := range w.groups {
		if !g.asked {
			g.retryAt = soon(g.retryAt)
		}
	}
}

// due is when tick is wanted; zero: never.
func (f *feed) due() time.Time {
	w := f.work
	if w == nil {
		return time.Time{}
	}
	at := w.lingerAt
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if w.repair == repairYoung || w.repair == repairResting {
		sooner(w.repairAt)
	}
	for _, g := range w.groups {
		if !g.asked {
			sooner(g.retryAt)
		}
	}
	return at
}

// sinkSet is a set of up to MaxSinks sinks.
type sinkSet [MaxSinks / 64]uint64

func (b *sinkSet) add(i int)      { b[i>>6] |= 1 << (i & 63) }
func (b *sinkSet) remove(i int)   { b[i>>6] &^= 1 << (i & 63) }
func (b *sinkSet) has(i int) bool { return b[i>>6]&(1<<(i&63)) != 0 }
func (b *sinkSet) empty() bool    { return *b == sinkSet{} }

// each calls do for every member, in order.
func (b *sinkSet) each(do func(i int)) {
	for word, set := range b {
		for ; set != 0; set &= set - 1 {
			do(word<<6 + bits.TrailingZeros64(set))
		}
	}
}
