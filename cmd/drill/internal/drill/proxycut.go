package drill

import "time"

// proxyCut: all edges live, but every connection ends at once, at 90 % of capacity.
func (w *world) proxyCut() error {
	how := "with FIN"
	if w.o.Silent {
		how = "without a word"
	}
	if err := w.incident("the balancer cuts every connection %s", how); err != nil {
		return err
	}
	n, err := w.front.(builtin).Cut(w.o.Silent)
	if err != nil {
		return err
	}
	w.report.Figures.Displaced = uint64(n)
	ideal := time.Duration(float64(n) / float64(w.lane()*w.o.Edges) * float64(time.Second))
	w.step("%d connections are cut; at the rate of the edges all are back in %.1f s at best", n, ideal.Seconds())
	if err := w.settle(3*ideal+2*w.o.Ping+90*time.Second, uint64(w.o.Clients)); err != nil {
		return err
	}
	w.promiseCrash()
	if w.o.Policy == "sdk" {
		w.promiseNoTokens()
	}
	return nil
}
