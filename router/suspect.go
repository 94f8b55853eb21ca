package router

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

// maxSuspects bounds the unknown runs of a channel; past it those without a key
// are told so.
const maxSuspects = 4

// lateFor is how long a run that was given up may still be committed: the server may
// finish it after its client has gone (a commit that waits for the disk), and a head
// that was read before that is not the truth for ever. A minute, as after a change of
// owner.
const lateFor = time.Minute

// suspect is a run whose outcome is unknown: the store failed or did not answer
// in time, and may commit it even later. While its events may be in the store
// they are numbered again only as an attempt that the fence lets win once:
//
//	row.head == run.Head   not stored yet: another run from the same head may be
//	                       tried; of the two at most one is stored
//	row.head >  run.Head   settled: the events at its offsets are ours, or never will be
type suspect struct {
	run  history.Run
	pubs []*machine.Publication
}

// outcomeUnknown forgets the channel and keeps what is needed to find out.
func (s *sequencer) outcomeUnknown(p *piece, run *history.Run) {
	p.lost = true
	pubs := expand(p.pubs)
	ch := p.ch
	ch.shard.mu.Lock()
	s.table.forgetLocked(ch)
	ch.late = time.Now().Add(lateFor)
	full := len(ch.suspects) >= maxSuspects
	if !full {
		ch.suspects = append(ch.suspects, suspect{*run, p.pubs})
	}
	ch.shard.mu.Unlock()
	for _, pub := range pubs {
		pub.Uncertain = true
		if full && pub.Event.Key == "" {
			s.finish(pub, machine.UnknownOutcome)
			continue
		}
		s.retryOne(p.work, pub)
	}
}

// retryLater queues again what is young enough, and tells the others.
func (s *sequencer) retryLater(w *work, pubs []*machine.Publication, uncertain bool) {
	for _, p := range expand(pubs) {
		p.Uncertain = p.Uncertain || uncertain
		s.retryOne(w, p)
	}
}

func (s *sequencer) retryOne(w *work, p *machine.Publication) {
	switch {
	case time.Since(p.Since) < s.cfg.RetryFor:
		w.back = append(w.back, p)
	case p.Uncertain:
		s.finish(p, machine.UnknownOutcome)
	default:
		s.finish(p, machine.NotStored)
	}
}

// settleSuspects compares what the store has with the runs of unknown outcome.
func (s *sequencer) settleSuspects(ctx context.Context, asked []*work) error {
	var ranges []history.Range
	var of []*work
	var settled []suspect
	for _, w := range asked {
		w.ch.shard.mu.Lock()
		for _, q := range w.ch.suspects {
			if w.epoch != q.run.Epoch || w.head > q.run.Head {
				ranges = append(ranges, history.Range{Channel: w.ch.name, After: q.run.Head, Limit: len(q.run.Events)})
				of, settled = append(of, w), append(settled, q)
			}
		}
		w.ch.shard.mu.Unlock()
	}
	if len(ranges) == 0 {
		return nil
	}
	s.metrics.storeCalls.read.Inc()
	pages, err := s.store.Read(ctx, ranges)
	if err != nil {
		return fmt.Errorf("read runs of unknown outcome: %w", err)
	}
	for i, w := range of {
		w.ch.shard.mu.Lock()
		w.ch.suspects = slices.DeleteFunc(w.ch.suspects, func(q suspect) bool { return &q.run.Events[0] == &settled[i].run.Events[0] })
		w.ch.shard.mu.Unlock()
		s.settleSuspect(w, &pages[i], settled[i])
	}
	return nil
}

func (s *sequencer) settleSuspect(w *work, page *history.Page, q suspect) {
	switch {
	case page.Epoch != q.run.Epoch || page.First > q.run.Head+1:
		s.neverKnown(w, q)
	case sameEvents(page.Events, q.run.Events):
		s.foundStored(w, q)
	}
}

// sameEvents compares whole runs: a run is stored whole or not at all.
func sameEvents(stored, ours []history.Event) bool {
	if len(stored) < len(ours) {
		return false
	}
	for i := range ours {
		a, b := &stored[i], &ours[i]
		if a.Offset != b.Offset || a.TimeMS != b.TimeMS || a.Binary != b.Binary || a.From != b.From ||
			!bytes.Equal(a.Data, b.Data) || !bytes.Equal(a.Meta, b.Meta) {
			return false
		}
	}
	return true
}

// foundStored answers a run that turned out to be in the store.
func (s *sequencer) foundStored(w *work, q suspect) {
	for i, p := range q.pubs {
		s.finishSuspect(w, p, machine.Result{Epoch: q.run.Epoch, Offset: q.run.Events[i].Offset})
	}
	w.ch.shard.mu.Lock()
	s.fan.publishedLocked(w.ch)
	base := w.ch.baseLocked(q.run.Epoch, q.run.Head)
	w.ch.shard.mu.Unlock()
	s.fan.out(w.ch.name, q.run.Epoch, base, busEvents(q.run.Events))
}

// neverKnown answers those without a key; of the others the key decides.
func (s *sequencer) neverKnown(w *work, q suspect) {
	for _, p := range q.pubs {
		if p.Event.Key == "" {
			s.finishSuspect(w, p, machine.UnknownOutcome)
		}
	}
}

// finishSuspect answers a publication that is in this batch or still queued, and
// takes it out of the batch.
func (s *sequencer) finishSuspect(w *work, p *machine.Publication, res machine.Result) {
	for i, in := range w.pubs {
		if in == p {
			w.pubs = append(w.pubs[:i:i], w.pubs[i+1:]...)
			s.finish(p, res)
			return
		}
	}
	if p.Take() {
		s.finish(p, res)
	}
}
