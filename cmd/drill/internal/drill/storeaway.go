package drill

import (
	"fmt"
	"time"
)

const awayTime = 20 * time.Second

// storeAway: nothing can be read or kept while clients resume. They come in all the
// same, hear live events, and learn their position when the store is back.
func (w *world) storeAway() error {
	if err := w.incident("the store is stopped"); err != nil {
		return err
	}
	if err := w.c.Store().Stop(); err != nil {
		return err
	}
	edge := w.c.Edges()[1]
	n := w.before[edge.ID]
	w.report.Figures.Displaced = n
	_, live := w.live.expected(w.members)
	if err := edge.Kill(); err != nil {
		return err
	}
	w.step("%s is killed: %d clients resume", edge.ID, n)
	ideal := time.Duration(float64(n) / float64(w.lane()*(w.o.Edges-1)) * float64(time.Second))
	if err := w.back(2*ideal+30*time.Second, n); err != nil {
		return err
	}
	if err := w.pause(time.Until(w.t0.Add(awayTime))); err != nil {
		return err
	}
	away := time.Since(w.t0)
	_, after := w.live.expected(w.members)
	r, err := w.gen.Report(w.ctx)
	if err != nil {
		return err
	}
	pending := r.Phase.Pending
	if err := w.c.Store().Restart(); err != nil {
		return err
	}
	w.step("the store is back after %.1f s; %d positions were pending, the others came from memory", time.Since(w.t0).Seconds(), pending)
	if err := w.settle(60*time.Second, n); err != nil {
		return err
	}
	w.promiseOthersStay()
	want := uint64(float64(w.o.Rate) * away.Seconds() * 0.8)
	w.promise(after-live >= want, "events without history flow meanwhile", "%d published and delivered in %.1f s, at least %d wanted", after-live, away.Seconds(), want)
	reads, limit := w.report.Figures.StoreReads, 200+100*away.Seconds()
	w.promise(reads <= limit, fmt.Sprintf("the store is asked at most %.0f times, away or back", limit), "%.0f times", reads)
	return nil
}
