package writer

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

// work is a run while it is written.
type work struct {
	*channel.Run
	at   channel.Position // the row, as it was read or is believed; moves as parts are stored
	lost bool             // the row is not there: what is left comes again
}

// prepare loads rows and keys for the runs that need it, finds out about runs of unknown
// outcome, and answers repeats. On an error nothing was stored.
func (w *Writer) prepare(ctx context.Context, batch []*work) error {
	queries, asked := headQueries(batch)
	if len(queries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StoreTimeout)
	defer cancel()
	look := w.views.Look(time.Now())
	heads, err := w.store.Heads(ctx, queries)
	if err != nil {
		return fmt.Errorf("load heads: %w", err)
	}
	shown := make([]channel.Position, len(asked))
	for i, k := range asked {
		shown[i] = k.Shown
	}
	if err := w.renewer.Check(ctx, queries, heads, shown); err != nil {
		return err
	}
	for i, k := range asked {
		k.at = channel.Position{Epoch: heads[i].Epoch, Offset: heads[i].Offset}
		k.Row = &channel.Row{Position: k.at, Trust: look.Trust()}
	}
	if err := w.compareUnknown(ctx, asked); err != nil {
		return err
	}
	for i, k := range asked {
		w.answerRepeats(k, heads[i].Repeats)
	}
	return nil
}

func headQueries(batch []*work) (queries []history.HeadQuery, asked []*work) {
	for _, k := range batch {
		q := history.HeadQuery{Channel: k.Channel}
		var seen map[history.Key]bool
		for _, p := range k.Pubs {
			if key := p.Key(); key.Key != "" && !seen[key] {
				if seen == nil {
					seen = make(map[history.Key]bool)
				}
				seen[key] = true
				q.Keys = append(q.Keys, key)
			}
		}
		if k.Load || len(q.Keys) > 0 {
			queries, asked = append(queries, q), append(asked, k)
		}
	}
	return queries, asked
}

// answerRepeats answers publications whose key the store knows with the offset of the
// first event; within the batch repeats go together with the first one.
func (w *Writer) answerRepeats(k *work, stored map[history.Key]uint64) {
	var first map[history.Key]*channel.Publication
	kept := k.Pubs[:0]
	for _, p := range k.Pubs {
		key := p.Key()
		if key.Key == "" {
			kept = append(kept, p)
			continue
		}
		if offset, ok := stored[key]; ok {
			w.metrics.repeats.Inc()
			k.answer(p, channel.Result{Epoch: k.at.Epoch, Offset: offset, Repeat: true})
			continue
		}
		if first == nil {
			first = make(map[history.Key]*channel.Publication)
		}
		if f := first[key]; f != nil {
			f.Repeats = append(f.Repeats, p)
			continue
		}
		first[key] = p
		kept = append(kept, p)
	}
	k.Pubs = kept
}

func (k *work) answer(p *channel.Publication, res channel.Result) {
	k.Answers = append(k.Answers, channel.Answer{Pub: p, Result: res})
}

// compareUnknown compares what the store has with the runs of unknown outcome.
func (w *Writer) compareUnknown(ctx context.Context, asked []*work) error {
	var ranges []history.Range
	var of []*work
	var unknown []*channel.UnknownRun
	for _, k := range asked {
		for i := range k.Unknown {
			u := &k.Unknown[i]
			if k.at.Epoch != u.Run.Epoch || k.at.Offset > u.Run.Head {
				ranges = append(ranges, history.Range{Channel: k.Channel, After: u.Run.Head, Limit: len(u.Run.Events)})
				of, unknown = append(of, k), append(unknown, u)
			}
		}
	}
	if len(ranges) == 0 {
		return nil
	}
	pages, err := w.store.Read(ctx, ranges)
	if err != nil {
		return fmt.Errorf("read runs of unknown outcome: %w", err)
	}
	for i, k := range of {
		k.Over = append(k.Over, *unknown[i])
		k.compare(&pages[i], unknown[i])
	}
	return nil
}

func (k *work) compare(page *history.Page, u *channel.UnknownRun) {
	switch {
	case page.Epoch != u.Run.Epoch || page.First > u.Run.Head+1:
		// Nobody will ever know. Of publications with a key the key decides.
		for _, p := range u.Pubs {
			if p.Event.Key == "" {
				k.end(p, channel.UnknownOutcome)
			}
		}
	case sameEvents(page.Events, u.Run.Events):
		k.Found = append(k.Found, *u)
		for i, p := range u.Pubs {
			k.end(p, channel.Result{Epoch: u.Run.Epoch, Offset: u.Run.Events[i].Offset})
		}
	}
}

// end answers a publication of an unknown run, which is in this run or still queued.
func (k *work) end(p *channel.Publication, res channel.Result) {
	for i, in := range k.Pubs {
		if in == p {
			k.Pubs = append(k.Pubs[:i:i], k.Pubs[i+1:]...)
			k.answer(p, res)
			return
		}
	}
	if p.Take() {
		k.answer(p, res)
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
