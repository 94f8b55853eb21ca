package writer

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

// unknown notes an append of which nobody knows whether it was stored. What comes again
// is compared with it first.
func (w *Writer) unknown(p *piece, run *history.Run) {
	p.lost = true
	full := len(p.Parts) == 0 && len(p.Unknown)-len(p.Over) >= channel.MaxUnknown
	attempt := &channel.UnknownRun{Run: *run, Pubs: p.pubs}
	for _, pub := range channel.Expand(p.pubs) {
		pub.Uncertain = true
		if full && pub.Event.Key == "" {
			p.answer(pub, channel.UnknownOutcome)
			continue
		}
		w.retry(p.work, pub)
	}
	p.Attempt = attempt
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
