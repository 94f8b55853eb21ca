package drill

import "time"

// scaleOut adds two edges to a full cluster: only the surplus moves, each client once.
func (w *world) scaleOut() error {
	if err := w.incident("two cold edges join"); err != nil {
		return err
	}
	share := uint64(w.o.Clients) * 2 / uint64(w.o.Edges+2)
	w.report.Figures.Displaced = share
	for range 2 {
		edge, err := w.c.AddEdge()
		if err != nil {
			return err
		}
		if err := w.c.AwaitReady(w.ctx, edge); err != nil {
			return err
		}
	}
	w.awaitBalance()
	if err := w.settle(60*time.Second, 0); err != nil {
		return err
	}
	w.promiseUninterrupted()
	w.promiseNoTokens()
	w.promiseBalance()
	twice := uint32(0)
	for n, of := range w.seen.MovesEach {
		if n > 1 {
			twice += of
		}
	}
	w.promise(twice == 0, "no client moves twice", "%d did", twice)
	moved := w.report.Figures.Moved
	w.promise(moved <= share*12/10, "only the surplus moves", "%d moved, the new edges' share is %d", moved, share)
	w.promiseLanes(laneMoved, float64(w.o.Admission.Moved), slack(float64(w.o.Admission.Moved)))
	return nil
}
