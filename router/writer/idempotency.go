package writer

import (
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
)

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
