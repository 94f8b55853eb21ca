package writer

import (
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

func (k *work) answer(p *channel.Publication, res channel.Result) {
	k.Answers = append(k.Answers, channel.Answer{Pub: p, Result: res})
}
