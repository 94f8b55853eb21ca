package feed

import (
	"slices"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// repairState is how far the repair of a hole is. Repair is needed exactly while
// delivered < seen.
//
//	none --jump--> young --HoleWait--> queued --turn--> asked --filled--> none
//	                 |                   ^                | more to come: asked again
//	                 | filled            +--- resting <---+ router away
//	                 v
//	               none
type repairState uint8

const (
	repairNone    repairState = iota
	repairYoung               // may be reordering
	repairQueued              // waits for the table's budget; live events are let go
	repairAsked               // a router was asked; the turn is ours
	repairResting             // the router could not say; live events are let go
)

// maxDenied is how many answers running may lack what the bus showed before it
// is taken for lost.
const maxDenied = 3

// wantRepair is called when time did not fill the hole.
func (f *feed) wantRepair(s *step) {
	w := f.work
	if w.repair == repairYoung {
		s.count[countRepairs]++
		f.blame(s)
	}
	if !f.history {
		w.repair = repairNone
		f.lose(s, ReasonNoHistory, 0)
		f.proceed(s)
		return
	}
	w.repair = repairQueued
	s.do(action{kind: actTurn})
}

// blame counts repairs that only a check of the head brought about: twice running
// and the bus has probably forgotten our interest.
func (f *feed) blame(s *step) {
	if !f.found {
		return
	}
	f.found = false
	f.behind = min(f.behind+1, 100)
	s.count[countBehind]++
	if f.behind >= 2 {
		s.do(action{kind: actRenew})
	}
}

// turn is called when the budget allows the repair to begin.
func (f *feed) turn(s *step) {
	w := f.work
	if w == nil || w.repair != repairQueued || f.seen <= f.delivered {
		s.do(action{kind: actDone})
		f.proceed(s)
		return
	}
	w.repair = repairAsked
	f.askRepair(s)
}

// wait is called when the budget does not allow it yet.
func (f *feed) wait(s *step) {
	s.count[countTurn] += len(f.work.held)
	f.dropHeld(s)
}

func (f *feed) askRepair(s *step) {
	epoch := f.epoch
	s.do(action{
		kind: actAsk,
		ask: &gatewayv1.Ask{
			Channel: f.channel, Epoch: &epoch, Offset: f.delivered, MaxBytes: uint32(s.cfg.ChunkBytes),
			SeenEpoch: f.epoch, SeenOffset: f.seen,
		},
		flight: flight{kind: askRepair, f: f, epoch: f.epoch, offset: f.delivered, seen: f.seen},
	})
}

// repaired takes the answer to askRepair.
func (f *feed) repaired(s *step, fl flight, a *gatewayv1.Answer) {
	w := f.work
	switch {
	case f.gone || !f.known:
		f.endRepair(s)
	case a.Status == gatewayv1.Status_STATUS_OK:
		f.repairedOK(s, fl, a)
	case refused(a.Status):
		f.endRepair(s)
		f.lose(s, ReasonHistory, 0)
	default:
		f.restRepair(s, a.RetryAfterMs)
	}
	if f.known && w.repair == repairNone {
		f.proceed(s)
	}
}

func (f *feed) repairedOK(s *step, fl flight, a *gatewayv1.Answer) {
	if !f.learn(s, a) {
		s.count[countBadAnswers]++
		f.restRepair(s, a.RetryAfterMs)
		return
	}
	before := position{f.epoch, f.delivered}
	switch {
	case fl.epoch != f.epoch:
	case a.Recovered:
		f.fill(s, fl.offset, f.frames(s, fl.offset, a))
	case a.From > f.delivered:
		f.lose(s, ReasonHistory, a.From) // what is behind it can be had
	}
	f.drain(s)
	w := f.work
	switch {
	case f.seen <= f.delivered:
		f.endRepair(s)
	case before != position{fl.epoch, fl.offset}, f.delivered > before.offset:
		f.askRepair(s) // it moved; go on until the head is reached
	case !a.Recovered:
		f.endRepair(s)
		f.lose(s, ReasonHistory, a.Head)
	default:
		s.count[countBadAnswers]++
		if w.denied++; w.denied >= maxDenied {
			w.denied = 0
			f.endRepair(s)
			f.lose(s, ReasonHistory, 0)
			return
		}
		f.restRepair(s, a.RetryAfterMs)
	}
}

type position struct{ epoch, offset uint64 }

func (f *feed) endRepair(s *step) {
	if w := f.work; w.repair == repairAsked {
		w.repair = repairNone
	}
	s.do(action{kind: actDone})
}

func (f *feed) restRepair(s *step, afterMS uint32) {
	w := f.work
	s.do(action{kind: actDone})
	w.repair, w.repairAt = repairResting, s.now.Add(s.retry(w.retries, afterMS))
	w.retries = min(w.retries+1, 20)
	f.wait(s)
}

// frames encodes the events of an answer, which must be from+1, from+2, ...;
// what breaks the row is left out.
func (f *feed) frames(s *step, from uint64, a *gatewayv1.Answer) []Frame {
	if len(a.Events) == 0 {
		return nil
	}
	frames := make([]Frame, 0, len(a.Events))
	for _, ev := range a.Events {
		if ev.Offset != from+uint64(len(frames))+1 {
			s.count[countBadAnswers]++
			break
		}
		frames = append(frames, f.encode(s, ev))
	}
	return frames
}

// fill delivers what frames (from+1, from+2, ...) have of the events that come
// next.
func (f *feed) fill(s *step, from uint64, frames []Frame) {
	if f.delivered < from || f.delivered-from >= uint64(len(frames)) {
		return
	}
	f.advance(s, slices.Clip(frames[f.delivered-from:]))
}

// lose gives up a hole: up to what is held, or to end (if it is not 0), or to all that
// was seen, whichever is first. The clock of a hole behind it starts with proceed.
func (f *feed) lose(s *step, why Reason, end uint64) {
	to := f.seen
	if w := f.work; w != nil && len(w.held) > 0 {
		to = w.held[0].Offset - 1
	}
	if end > f.delivered && end < to {
		to = end
	}
	if to > f.delivered {
		f.skip(s, why, to)
	}
}

// skip tells live subscribers that everything up to an offset is lost.
func (f *feed) skip(s *step, why Reason, to uint64) {
	if f.fresh {
		f.fresh, why = false, ReasonEpoch
	}
	from := f.delivered
	f.delivered = to
	f.seen = max(f.seen, to)
	if f.work != nil {
		f.dropRecent(s)
	}
	s.do(action{kind: actGap, epoch: f.epoch, from: from, offset: to, reason: why})
}

// refused says that the router answered, and the answer is no.
func refused(st gatewayv1.Status) bool {
	return st == gatewayv1.Status_STATUS_FORBIDDEN || st == gatewayv1.Status_STATUS_NOT_FOUND || st == gatewayv1.Status_STATUS_INVALID
}
