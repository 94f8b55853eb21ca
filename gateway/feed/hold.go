package feed

import (
	"slices"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// hold keeps an event that cannot be delivered yet. A channel that waits for its
// turn to be repaired lets it go: it will be fetched.
func (f *feed) hold(s *step, ev *gatewayv1.BusEvent) {
	w := f.busy()
	if w.repair == repairQueued || w.repair == repairResting {
		s.count[countTurn]++
		return
	}
	at, had := slices.BinarySearchFunc(w.held, ev.Offset, func(h Frame, offset uint64) int {
		switch {
		case h.Offset < offset:
			return -1
		case h.Offset > offset:
			return 1
		}
		return 0
	})
	if had {
		s.count[countDuplicates]++
		return
	}
	fr := f.encode(s, ev)
	w.held = slices.Insert(w.held, at, fr)
	w.heldSize += frameSize(fr)
	s.held += frameSize(fr)
	if !f.overfull(s) {
		return
	}
	if f.known && !f.history {
		f.giveUp(s)
		return
	}
	s.count[countHoldFull] += len(w.held)
	f.dropHeld(s)
	if w.repair == repairYoung {
		w.repairAt = s.now // the hole is real
	}
}

// overfull says that f, or the shard, holds more than it may.
func (f *feed) overfull(s *step) bool {
	return f.work.heldSize+f.work.keptSize > s.cfg.HoldBytes || s.held > s.budget
}

// giveUp ends holes that nobody can fill while there is no room to wait longer.
func (f *feed) giveUp(s *step) {
	for len(f.work.held) > 0 && f.overfull(s) {
		f.lose(s, ReasonNoHistory, 0)
		f.drain(s)
	}
}

// drain delivers the head of what is held, as far as it is in order.
func (f *feed) drain(s *step) {
	w := f.work
	if w == nil || len(w.held) == 0 {
		return
	}
	had := 0
	for had < len(w.held) && w.held[had].Offset <= f.delivered {
		had++
	}
	end := had
	for end < len(w.held) && w.held[end].Offset == f.delivered+uint64(end-had)+1 {
		end++
	}
	if end == 0 {
		return
	}
	run := slices.Clone(w.held[had:end])
	for _, fr := range w.held[:end] {
		w.heldSize -= frameSize(fr)
		s.held -= frameSize(fr)
	}
	w.held = slices.Delete(w.held, 0, end)
	if len(w.held) == 0 {
		w.held = nil
	}
	s.count[countDuplicates] += had
	if len(run) > 0 {
		f.advance(s, run)
	}
}

func (f *feed) dropHeld(s *step) {
	w := f.work
	s.held -= w.heldSize
	w.held, w.heldSize = nil, 0
}

// keep remembers what was delivered while somebody waits for an answer, which may
// be older. What goes over the bound is forgotten, oldest first.
func (f *feed) keep(s *step, frames []Frame) {
	w := f.work
	for _, fr := range frames {
		w.keptSize += frameSize(fr)
		s.held += frameSize(fr)
	}
	w.recent = append(w.recent, frames...)
	n := 0
	for n < len(w.recent) && f.overfull(s) {
		w.keptSize -= frameSize(w.recent[n])
		s.held -= frameSize(w.recent[n])
		n++
	}
	if n > 0 {
		w.recent = slices.Delete(w.recent, 0, n)
	}
}

func (f *feed) dropRecent(s *step) {
	w := f.work
	s.held -= w.keptSize
	w.recent, w.keptSize = nil, 0
}

// since returns the frames after an offset up to delivered, if all are still
// kept.
func (f *feed) since(offset uint64) ([]Frame, bool) {
	n := f.delivered - offset
	if f.delivered <= offset {
		return nil, true
	}
	w := f.work
	if w == nil || uint64(len(w.recent)) < n {
		return nil, false
	}
	return w.recent[uint64(len(w.recent))-n:], true
}
