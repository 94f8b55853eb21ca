package drill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// promiseEvents: nobody lost, doubled or disordered anything, over the whole run.
func (w *world) promiseEvents() {
	t := w.seen.Total
	w.promise(t.Lost == 0 && t.Announced == 0 && t.SeqSkips == 0, "no event is lost", "%d lost, %d announced as lost", t.Lost, t.Announced)
	w.promise(t.Duplicate+t.SeqRepeats+t.Unexpected+t.BadPayload == 0, "none is doubled, disordered or damaged",
		"%d doubled or disordered, %d stored twice, %d unexpected, %d damaged", t.Duplicate, t.SeqRepeats, t.Unexpected, t.BadPayload)
	w.promise(t.NotRecovered == 0, "no position is refused", "%d times recovered=false", t.NotRecovered)
}

// promiseUninterrupted: every client had a connection at all times.
func (w *world) promiseUninterrupted() {
	n := w.seen.Phase
	w.promise(n.Interrupted == 0, "no stream is interrupted", "%d interrupted; %d clients moved before the break", n.Interrupted, n.Moved)
}

// promiseOthersStay: only those lose their connection from whom it was taken.
func (w *world) promiseOthersStay() {
	n, d := w.seen.Phase.Interrupted, w.report.Figures.Displaced
	w.promise(n <= d, "no other connection drops", "%d interrupted, %d were displaced", n, d)
}

// promiseGrants: all edges together take no more than they granted, and none more than
// its lane allows.
func (w *world) promiseGrants() {
	begin := w.at(w.t0)
	if w.op != nil && w.op.GrantedPerSecond > 0 {
		rate := w.op.GrantedPerSecond
		over := excess(cut(w.seen.Arrivals, begin), rate, slack(rate)+resumeBurst) // I5: who is late comes by the lane
		w.promise(over == 0, "arrivals stay within the grants", "peak %d/s, granted %.0f/s, %.0f above", w.report.Curve.Peaks["all"], rate, over)
		return
	}
	w.promise(false, "arrivals stay within the grants", "no grants are known: the cluster tells of no operation")
}

// promiseLanes: edges let no more in than their lane says. rate and burst are those of
// one edge, in the lane that the clients come by. The edges' own windows are added over
// all of them; where the cluster does not tell, each edge is judged by what clients saw.
func (w *world) promiseLanes(lane int, rate, burst float64) {
	name := [...]string{"moved", "resume", "fresh"}[lane]
	if own, ok := w.admitted(); ok {
		edges := float64(w.o.Edges + w.o.Spare)
		over := excess(own[lane], rate*edges, (burst+slack(rate))*edges)
		w.promise(over == 0, fmt.Sprintf("edges admit no more than their %s lanes: %.0f/s each", name, rate),
			"%d came by it, at most %d in a second at all edges together, %.0f too many", sum(own[lane]), peak(own[lane]), over)
		return
	}
	begin := w.at(w.t0)
	var over float64
	for _, node := range slices.Sorted(maps.Keys(w.seen.ByNode)) {
		over = max(over, excess(cut(w.seen.ByNode[node], begin), rate, burst+slack(rate)))
	}
	w.promise(over == 0, fmt.Sprintf("edges admit no more than their %s lanes: %.0f/s each", name, rate),
		"at most %d in a second at any edge, %.0f too many", w.busiest(), over)
}

func (w *world) busiest() (n uint64) {
	for node, peak := range w.report.Curve.Peaks {
		if node != "all" {
			n = max(n, peak)
		}
	}
	return n
}

// slack is what a series of 200 ms may be off: two buckets, and one arrival in each.
func slack(rate float64) float64 { return rate*2/float64(second) + 2 }

// promiseSettled: it is over when the plan said; clients that know only a fixed
// interval are closed within the plan and come one interval later.
func (w *world) promiseSettled() {
	f := &w.report.Figures
	took := f.SettleMs
	if took == 0 {
		took = f.ArrivedMs
	}
	limit := f.PlannedMs + max(f.PlannedMs/10, 2000) + interval(w.o.Policy).Milliseconds()
	w.promise(f.PlannedMs > 0 && took <= limit, "it settles in the planned time", "%.1f s, planned %.1f s", float64(took)/1000, float64(f.PlannedMs)/1000)
}

// promiseReads: the store is not read once for each client that comes back (I10), but
// in batches of cold channels: twice head and events of each for each edge at most, and
// not for one client in five, however many channels there are.
func (w *world) promiseReads() {
	f := &w.report.Figures
	limit := min(4*float64(len(w.pub.channels)*w.o.Edges), max(float64(f.Displaced)/5, 500))
	w.promise(f.StoreReads <= limit, fmt.Sprintf("the store is read in batches, if at all (I10): at most %.0f times", limit),
		"%.0f reads for %d displaced clients", f.StoreReads, f.Displaced)
}

// promiseOutage bounds the p99 for clients with a fixed interval.
func (w *world) promiseOutage(limit time.Duration) {
	p99 := time.Duration(w.report.Figures.Outage.P99) * time.Millisecond
	w.promise(p99 <= limit, fmt.Sprintf("p99 of the outages is at most %v", limit), "%v", p99)
}

// promiseFirst: whoever keeps to what it was told is rarely refused at first.
func (w *world) promiseFirst() {
	n := w.seen.Phase
	w.promise(w.report.Figures.FirstRefused <= 0.05, "at most 5 % of first attempts are refused", "%.1f %% (%d of %d)",
		100*w.report.Figures.FirstRefused, n.FirstRefused, n.FirstAttempts)
}

// promiseNoTokens: tickets stand for tokens.
func (w *world) promiseNoTokens() {
	n := w.seen.Phase.TokenAsks
	w.promise(n == 0, "no token provider is asked", "%d calls", n)
}

// promiseRising: the number of connected clients never falls again.
func (w *world) promiseRising(from time.Time) {
	ends := sum(cut(w.seen.Ends, w.at(from)))
	w.promise(ends == 0, "connected clients never fall while others come", "%d lost their connection after the first second", ends)
}

// interval of a fixed policy; 0: it is none.
func interval(policy string) time.Duration {
	if text, ok := strings.CutPrefix(policy, "fixed-"); ok {
		if d, err := time.ParseDuration(text); err == nil {
			return d
		}
	}
	return 0
}
