package drill

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// conns are the connections of each edge, as a router knows them.
func (w *world) conns() (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	resp, err := w.admin.ListNodes(ctx, &routerv1.ListNodesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	all := make(map[string]uint64)
	for _, n := range resp.Nodes {
		if n.Role == "edge" {
			all[n.Id] = n.Conns
		}
	}
	return all, nil
}

// metric sums the samples of a metric over nodes; labels: a part of what stands in the
// braces, or "".
func (w *world) metric(nodes []*cluster.Node, name, labels string) float64 {
	total := 0.0
	for _, n := range nodes {
		_, text := n.Get(w.ctx, "/metrics")
		total += sample(text, name, labels)
	}
	return total
}

func sample(text, name, labels string) (total float64) {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' || !strings.Contains(rest, labels) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err == nil {
			total += v
		}
	}
	return total
}

// reading is how often the store was read until a moment.
type reading struct {
	at    time.Time
	reads float64 // heads and events for those who come back
	calls float64 // the same, and look-ups for publishes
}

func (w *world) reading() reading {
	r := reading{at: time.Now()}
	if w.c != nil {
		r.reads = w.metric(w.c.Routers(), "spillway_router_store_calls_total", `call="read"`)
		r.calls = r.reads + w.metric(w.c.Routers(), "spillway_router_store_calls_total", `call="heads"`)
	}
	return r
}

// storeReads are those of the incident. Publishes look their keys up by calls of their
// own ("heads"), which do not count: nobody who comes back causes them.
func (w *world) storeReads() float64 {
	now, quiet := w.reading(), w.reads0.at.Sub(w.quiet.at).Seconds()
	usual := 0.0
	if quiet > 0 {
		usual = (w.reads0.reads - w.quiet.reads) / quiet
	}
	return max(0, now.reads-w.reads0.reads-usual*now.at.Sub(w.reads0.at).Seconds())
}

// incident begins: from here everything counts.
func (w *world) incident(format string, args ...any) error {
	if err := w.gen.Mark(w.ctx, "incident"); err != nil {
		return err
	}
	var err error
	if w.before, err = w.conns(); err != nil {
		return err
	}
	w.reads0 = w.reading()
	w.t0 = time.Now()
	for i := range w.report.Steps { // told from the start of the incident
		w.report.Steps[i].AtMs += w.report.Began.Sub(w.t0).Milliseconds() + 2*-w.report.Steps[i].AtMs
	}
	w.step(format, args...)
	return nil
}

// back waits until that many interruptions were noticed and all clients are connected.
// A client that is not back in time is a broken promise, not an error.
func (w *world) back(within time.Duration, interrupted uint64) error {
	up := 0
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		r, err := w.gen.Report(w.ctx)
		if err != nil {
			return err
		}
		if up = r.Up; up == w.o.Clients && r.Phase.Interrupted >= interrupted {
			break
		}
		if err := w.pause(500 * time.Millisecond); err != nil {
			return err
		}
	}
	w.promise(up == w.o.Clients, "everybody is back", "%d of %d clients are connected", up, w.o.Clients)
	return nil
}

// settle waits until all are back, lets the last events arrive, and looks.
func (w *world) settle(within time.Duration, interrupted uint64) error {
	if err := w.back(within, interrupted); err != nil {
		return err
	}
	if err := w.pause(6 * time.Second); err != nil { // settled is: five quiet seconds
		return err
	}
	w.stopPublishing()
	expected, events := w.pub.expected(w.members)
	if w.live != nil {
		more, live := w.live.expected(w.members)
		expected, events = expected+more, events+live
	}
	ctx, cancel := context.WithTimeout(w.ctx, 40*time.Second)
	_ = w.gen.AwaitDeliveries(ctx, expected) // what is missing then is a verdict
	cancel()
	if w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	w.report.Figures.Events = events
	var err error
	if w.seen, err = w.gen.Report(w.ctx); err != nil {
		return err
	}
	w.step("%d clients are up; %d events acked, %d of %d deliveries made", w.seen.Up, events, w.seen.Total.Deliveries, expected)
	if w.seen.Total.Deliveries != expected {
		w.missing()
	}
	w.promise(w.seen.Total.Deliveries == expected, "everybody has caught up", "%d of %d deliveries of %d events", w.seen.Total.Deliveries, expected, events)
	w.figures()
	w.promiseEvents()
	return nil
}

// at is the bucket of a moment in the generators' series.
func (w *world) at(t time.Time) int { return int(t.Sub(w.seen.Start) / loadgen.Bucket) }

// figures fills the report from what clients saw.
func (w *world) figures() {
	r, s := w.report, w.seen
	begin := max(w.at(w.t0), 0)
	from := max(begin-int(lead/loadgen.Bucket), 0)
	up := level(s.Returns, s.Ends)
	c := &r.Curve
	*c = Curve{
		BucketMs: int(loadgen.Bucket / time.Millisecond), FromMs: int64(from-begin) * int64(loadgen.Bucket/time.Millisecond),
		Arrivals: cut(s.Arrivals, from), Refusals: cut(s.Refusals, from), Ends: cut(s.Ends, from), Up: up[min(from, len(up)):],
		Peaks: map[string]uint64{"all": peak(cut(s.Arrivals, begin))},
	}
	for node, series := range s.ByNode {
		c.Peaks[node] = peak(cut(series, begin))
	}
	n := s.Phase
	f := &r.Figures
	f.Interrupted, f.Moved, f.TokenAsks = n.Interrupted, n.Moved, n.TokenAsks
	f.Outage, f.CaughtUp = outageOf(&s.Outage), outageOf(&s.CaughtUp)
	f.FirstRefused, f.RefusalsAdmitted = ratio(n.FirstRefused, n.FirstAttempts), ratio(n.Refused, n.Connected)
	f.StoreReads = math.Round(w.storeReads())
	if f.Displaced > 0 {
		f.ReadsDisplaced = f.StoreReads / float64(f.Displaced)
	}
	f.ArrivedMs = last(cut(s.Arrivals, begin)).Milliseconds()
	f.Latency = map[string]int64{"p50": s.Latency.Quantile(0.5).Microseconds(), "p95": s.Latency.Quantile(0.95).Microseconds(), "p99": s.Latency.Quantile(0.99).Microseconds()}
	f.Counts, f.Refused, f.Codes, f.Causes, f.MovesEach = n, s.Refused, s.Codes, s.Causes, s.MovesEach
	if conns, err := w.conns(); err == nil {
		f.Conns = conns
	}
	f.Closed, f.TurnedAway = w.byLabel("spillway_gateway_closed_total"), w.byLabel("spillway_gateway_refused_total")
	if w.op != nil {
		f.PlannedMs, f.GrantedPerSecond = int64(w.op.PlannedMs), w.op.GrantedPerSecond
	}
	w.incidents()
}

// byLabel sums the samples of a metric of the edges by its one label; those at zero are
// left out.
func (w *world) byLabel(name string) map[string]uint64 {
	all := make(map[string]uint64)
	if w.c == nil {
		return all
	}
	for _, n := range w.c.Edges() {
		_, text := n.Get(w.ctx, "/metrics")
		for line := range strings.Lines(text) {
			rest, ok := strings.CutPrefix(line, name+"{")
			if !ok {
				continue
			}
			label, value, _ := strings.Cut(rest, "} ")
			_, label, _ = strings.Cut(label, "=")
			if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && v > 0 {
				all[strings.Trim(label, `"`)] += uint64(v)
			}
		}
	}
	return all
}

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// incidents asks the cluster for its own view of the settle time.
func (w *world) incidents() {
	for range 20 {
		ctx, cancel := context.WithTimeout(w.ctx, callTime)
		resp, err := w.admin.ListIncidents(ctx, &routerv1.ListIncidentsRequest{})
		cancel()
		if err != nil {
			return // this version does not measure it
		}
		for _, i := range resp.Incidents {
			if i.SettledMs > 0 && time.UnixMilli(int64(i.StartMs)).After(w.t0.Add(-3*time.Second)) {
				w.report.Figures.SettleMs = max(w.report.Figures.SettleMs, int64(i.SettledMs-i.StartMs))
			}
		}
		if w.report.Figures.SettleMs > 0 || w.pause(500*time.Millisecond) != nil {
			return
		}
	}
}

// operation is the newest one of a node or region since the incident; nil: none.
func (w *world) operation(kind, of string) *routerv1.Operation {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	resp, err := w.admin.ListOperations(ctx, &routerv1.ListOperationsRequest{})
	if err != nil {
		return nil
	}
	for _, op := range resp.Operations {
		if op.Kind == kind && (op.Node == of || op.Region == of) && int64(op.StartedMs) >= w.t0.Add(-2*time.Second).UnixMilli() {
			return op
		}
	}
	return nil
}

// missing tells whether what was not delivered is in the store, for who looks into it.
func (w *world) missing() {
	stored, acked := uint64(0), uint64(0)
	var odd []string
	for ch, name := range w.pub.channels {
		ctx, cancel := context.WithTimeout(w.ctx, callTime)
		page, err := w.history.ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: name, Limit: 1, Reverse: true})
		cancel()
		if err != nil || len(page.Events) == 0 {
			continue
		}
		stored, acked = stored+page.Events[0].Offset, acked+w.pub.acked[ch]
		if page.Events[0].Offset != w.pub.acked[ch] && len(odd) < 10 {
			odd = append(odd, fmt.Sprintf("%s: %d stored, %d acked", name, page.Events[0].Offset, w.pub.acked[ch]))
		}
	}
	w.step("not all was delivered: %d events are stored, %d were acked, %d calls failed (%v) %v", stored, acked, w.pub.fails, w.pub.last, odd)
}
