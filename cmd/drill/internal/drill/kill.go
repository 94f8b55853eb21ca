package drill

import "time"

// kill ends one edge as a crash would: its clients come unannounced.
func (w *world) kill() error {
	edge := w.c.Edges()[1]
	if err := w.incident("%s is killed", edge.ID); err != nil {
		return err
	}
	w.report.Figures.Displaced = w.before[edge.ID]
	if err := edge.Kill(); err != nil {
		return err
	}
	survivors := w.o.Edges - 1
	ideal := time.Duration(float64(w.report.Figures.Displaced) / float64(w.lane()*survivors) * float64(time.Second))
	w.step("%d clients are displaced; at the rate of the others all are back in %.1f s at best", w.report.Figures.Displaced, ideal.Seconds())
	if err := w.settle(2*ideal+60*time.Second, w.report.Figures.Displaced); err != nil {
		return err
	}
	w.promiseCrash()
	if w.o.Policy == "sdk" {
		w.promiseFirst()
		w.promiseNoTokens()
	}
	return nil
}

// lane is the rate by which an edge admits clients of this policy that come back.
func (w *world) lane() int {
	if w.o.Policy == "sdk" {
		return w.o.Admission.Resume
	}
	return w.o.Admission.Fresh
}

// promiseCrash: what holds whenever clients come unannounced.
func (w *world) promiseCrash() {
	w.promiseOthersStay()
	if w.o.Policy == "sdk" {
		w.promiseLanes(laneResumed, float64(w.o.Admission.Resume), resumeBurst)
	} else {
		w.promiseLanes(laneFresh, float64(w.o.Admission.Fresh), float64(w.o.Admission.Burst))
	}
	w.promiseReads()
}
