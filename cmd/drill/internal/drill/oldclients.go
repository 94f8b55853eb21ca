package drill

import "time"

// oldClients: those of a killed edge come in step, again and again, each asking for its
// history, and give up after 5 s. Whoever is connected is not to notice, and all are to
// get in at the rate of the lanes.
func (w *world) oldClients() error {
	edge := w.c.Edges()[1]
	if err := w.incident("%s is killed; its clients retry every %v, for ever", edge.ID, interval(w.o.Policy)); err != nil {
		return err
	}
	n := w.before[edge.ID]
	w.report.Figures.Displaced = n
	if err := edge.Kill(); err != nil {
		return err
	}
	rate := w.o.Admission.Fresh * (w.o.Edges - 1)
	ideal := time.Duration(float64(n) / float64(rate) * float64(time.Second))
	limit := ideal*13/10 + interval(w.o.Policy)
	w.step("%d clients are displaced; at %d/s all are back in %.1f s at best", n, rate, ideal.Seconds())
	if err := w.settle(2*limit+30*time.Second, n); err != nil {
		return err
	}
	w.promiseOthersStay()
	w.promiseRising(w.t0.Add(time.Second))
	if !w.o.Admission.Off {
		w.promiseLanes(laneFresh, float64(w.o.Admission.Fresh), float64(w.o.Admission.Burst))
	}
	took := time.Duration(w.report.Figures.ArrivedMs) * time.Millisecond
	w.promise(took <= limit, "all are back within 1.3 n / rate and one interval", "%.1f s, allowed %.1f s", took.Seconds(), limit.Seconds())
	w.promiseReads()
	return nil
}
