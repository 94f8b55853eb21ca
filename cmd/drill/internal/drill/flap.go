package drill

import "time"

// flapEvery is well under the 5 s that make a connection stable.
const flapEvery = 2 * time.Second

// flap: whatever comes up is closed again before it counts as stable. Clients are to
// come back ever more slowly.
func (w *world) flap() error {
	if err := w.incident("every connection is closed after %v at most, for %v", flapEvery, w.o.Window); err != nil {
		return err
	}
	w.report.Figures.Displaced = uint64(w.o.Clients)
	cut := w.front.(builtin)
	var attempts [4]uint64 // at each third
	for i := range attempts {
		r, err := w.gen.Report(w.ctx)
		if err != nil {
			return err
		}
		attempts[i] = r.Phase.Attempts
		if i == len(attempts)-1 {
			break
		}
		until := w.t0.Add(w.o.Window / 3 * time.Duration(i+1))
		for time.Now().Before(until) {
			if _, err := cut.Cut(false); err != nil {
				return err
			}
			if err := w.pause(min(flapEvery, time.Until(until))); err != nil {
				return err
			}
		}
	}
	w.step("the closing has ended")
	if err := w.settle(90*time.Second, uint64(w.o.Clients)); err != nil {
		return err
	}
	first, last := attempts[1]-attempts[0], attempts[3]-attempts[2]
	w.promise(last*2 <= first, "back-off grows: the last third sees at most half of the attempts of the first",
		"%d attempts, then %d, then %d", first, attempts[2]-attempts[1], last)
	w.promiseNoTokens()
	return nil
}
