package drill

import (
	"fmt"
	"time"
)

// balanced is what the fullest edge may have of the mean at the end.
const balanced = 1.15

// rolling restarts all edges, one after the other, as a deployment does.
func (w *world) rolling() error {
	if err := w.incident("all %d edges are restarted one by one", w.o.Edges); err != nil {
		return err
	}
	w.report.Figures.Displaced = uint64(w.o.Clients)
	for i, edge := range w.c.Edges() {
		w.op = nil
		if err := w.stopEdge(i); err != nil {
			return err
		}
		if err := edge.Start(); err != nil {
			return err
		}
		if err := w.c.AwaitReady(w.ctx, edge); err != nil {
			return err
		}
		if w.front != nil { // the balancer takes it back after two good checks
			if err := w.pause(notice); err != nil {
				return err
			}
		}
	}
	w.op = nil
	w.awaitBalance()
	if err := w.settle(60*time.Second, 0); err != nil {
		return err
	}
	w.promiseUninterrupted()
	w.promiseNoTokens()
	w.promiseFewMoves(2)
	w.promiseBalance()
	return nil
}

// awaitBalance waits for the edges to share their clients evenly. Behind one address
// nobody can be sent to a certain edge: there they even out as clients come and go.
func (w *world) awaitBalance() {
	within := 3 * time.Minute
	if w.front != nil {
		within = 20 * time.Second
	}
	err := w.eventually(within, "the edges are balanced", func() bool { return w.imbalance() <= balanced })
	if err == nil {
		w.step("the edges are balanced: the fullest has %.2f times the mean", w.imbalance())
	} else {
		w.step("%v: the fullest has %.2f times the mean", err, w.imbalance())
	}
}

// imbalance is the fullest edge over the mean.
func (w *world) imbalance() float64 {
	conns, err := w.conns()
	if err != nil || len(conns) == 0 {
		return 99
	}
	total, top := uint64(0), uint64(0)
	for _, n := range conns {
		total += n
		top = max(top, n)
	}
	if total == 0 {
		return 99
	}
	return float64(top) * float64(len(conns)) / float64(total)
}

func (w *world) promiseBalance() {
	if w.front != nil {
		return
	}
	// A few connections more are a few per cent of a small edge, and its clients may
	// not move twice.
	got, limit := w.imbalance(), balanced+10*float64(len(w.report.Figures.Conns))/float64(w.o.Clients)
	w.promise(got <= limit, fmt.Sprintf("the fullest edge has at most %.2f times the mean", limit), "%.2f, %v", got, w.report.Figures.Conns)
}

// promiseFewMoves bounds how often clients moved, on average.
func (w *world) promiseFewMoves(limit float64) {
	total, clients, longest := 0.0, 0.0, 0
	for n, of := range w.seen.MovesEach {
		total += float64(n) * float64(of)
		clients += float64(of)
		if of > 0 {
			longest = n
		}
	}
	mean := total / max(clients, 1)
	w.promise(mean <= limit, fmt.Sprintf("a client moves %.1f times at most, on average", limit), "%.2f times, %d at most", mean, longest)
}
