package drill

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/postgres"
)

const (
	behind       = 5                       // events that a client has missed
	returnRate   = 3000                    // clients that come back in a second, and the resume lanes of all edges together
	comeBack     = 5 * time.Second         // in which the last of 10,000 is welcomed
	youngRouter  = 61 * time.Second        // router.Config.OwnerRecheck, and some
	readPace     = 200 * time.Millisecond  // router.Config.ReadPace
	readsAtOnce  = 4                       // of a router: store.read_conns
	readBurst    = 5                       // batches of a router without a pace between them
	readFill     = 400                     // questions that are a batch at any time
	headsChecked = 1500 * time.Millisecond // after the last client: edges check heads of new channels within 1 s
	fullSize     = 5000                    // channels; with fewer, time and not their number says what a storm costs
)

// Return is how all clients came back at once, and what that cost the store.
type Return struct {
	What      string        `json:"what"`
	Clients   int           `json:"clients"`
	Channels  int           `json:"channels"`
	Behind    int           `json:"events_behind"`
	WelcomeMs int64         `json:"last_welcome_ms"`  // since the first came
	AllMs     int64         `json:"all_caught_up_ms"` // since the first came
	CaughtUp  Outage        `json:"caught_up"`        // each since its own first attempt
	Queries   float64       `json:"store_queries"`    // of all routers, heads and events, checks of heads included
	PerRead   float64       `json:"questions_per_query"`
	Peak      float64       `json:"queries_at_once"` // most at any router
	Memory    float64       `json:"answers_from_memory"`
	Store     float64       `json:"answers_from_store"`
	StoreCPU  time.Duration `json:"store_cpu_ns"` // of PostgreSQL
	Refused   uint64        `json:"refused"`
	Young     bool          `json:"young_routers"` // read heads again for every answer
	took      time.Duration // until nothing was asked any more
}

// backfill has all clients away while events come, and back within seconds: with warm
// tails, with routers that were just started, and with a query for each question beside.
func (w *world) backfill() error {
	w.liftResumes()
	if err := w.returns(); err != nil {
		return err
	}
	var err error
	if w.seen, err = w.gen.Report(w.ctx); err != nil {
		return err
	}
	expected, _ := w.pub.expected(w.members)
	w.promise(w.seen.Total.Deliveries == expected, "everybody has caught up", "%d of %d deliveries", w.seen.Total.Deliveries, expected)
	w.promiseEvents()
	return nil
}

func (w *world) returns() error {
	warm, err := w.comeBack("warm tails", nil)
	if err != nil {
		return err
	}
	if warm.Young {
		w.promiseBatches(warm)
	} else {
		w.promise(warm.Queries == 0, "with warm tails the store is not asked", "%.0f queries", warm.Queries)
	}
	w.promiseReturn(warm)
	cold, err := w.comeBack("routers just started", func() error { return w.newRouters("") })
	if err != nil {
		return err
	}
	if len(w.pub.channels) >= fullSize {
		most := float64(len(w.pub.channels) / 100)
		w.promise(cold.Queries <= most, "with routers just started: at most one query for 100 channels", "%.0f queries for %d channels", cold.Queries, len(w.pub.channels))
	} else {
		w.promiseBatches(cold)
	}
	w.promiseReturn(cold)
	_, err = w.comeBack("the same, limits.read_batch 1: a query for each question", func() error { return w.newRouters("limits: {read_batch: 1}\n") })
	if err != nil {
		return err
	}
	return w.single()
}

// promiseReturn: what holds warm and cold.
func (w *world) promiseReturn(r *Return) {
	within := max(comeBack, w.window()*3/2).Round(time.Second)
	w.promise(r.WelcomeMs <= within.Milliseconds() && r.CaughtUp.Clients == uint64(r.Clients), r.What+": all are back within "+within.String()+" and catch up",
		"the last is welcomed after %.1f s, all have caught up after %.1f s; p99 from resume to caught up %d ms", float64(r.WelcomeMs)/1000, float64(r.AllMs)/1000, r.CaughtUp.P99)
	w.promise(r.Peak <= readsAtOnce, fmt.Sprintf("%s: at most %d reads at once at any router", r.What, readsAtOnce), "%.0f", r.Peak)
}

// promiseBatches: a router asks at most once in a pace and once for each full batch.
func (w *world) promiseBatches(r *Return) {
	limit := float64(len(w.c.Routers()))*(readBurst+float64(r.took/readPace)) + float64(2*len(w.pub.channels)/readFill)
	w.promise(r.Queries <= limit, r.What+": queries grow with time and full batches, not with clients", "%.0f queries, at most %.0f in %.1f s", r.Queries, limit, r.took.Seconds())
}

func (w *world) window() time.Duration {
	return time.Duration(w.o.Clients) * time.Second / returnRate
}

// comeBack sends all away, publishes, prepares, and lets them come back.
func (w *world) comeBack(what string, prepare func() error) (*Return, error) {
	if err := w.gen.Away(w.ctx); err != nil {
		return nil, err
	}
	all := make([]int, 0, len(w.pub.channels)*behind)
	for range behind {
		for ch := range w.pub.channels {
			all = append(all, ch)
		}
	}
	for len(all) > 0 {
		n := min(len(all), publishMost)
		w.pub.publish(w.ctx, all[:n])
		all = all[n:]
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			return nil, err
		}
	} else if w.o.Steady >= Default().Steady {
		if err := w.pause(time.Until(w.newest.Add(youngRouter))); err != nil {
			return nil, err
		}
	}
	if err := w.gen.Mark(w.ctx, what); err != nil {
		return nil, err
	}
	young := time.Since(w.newest) < youngRouter
	w.step("%s: %d clients come back to %d channels, %d events behind", what, w.o.Clients, len(w.pub.channels), behind)
	r, err := w.measure(what)
	if err != nil {
		return nil, err
	}
	r.Young = young
	w.report.Returns = append(w.report.Returns, r)
	return r, nil
}

// storeWork is what routers and store have done until a moment.
type storeWork struct {
	queries, questions, memory, store float64
	cpu                               time.Duration
}

func (w *world) storeWork() storeWork {
	rs := w.c.Routers()
	return storeWork{
		queries: w.reading().calls, questions: w.metric(rs, "spillway_router_read_batch_channels_sum", ""),
		memory: w.metric(rs, "spillway_router_asks_total", `by="tail"`), store: w.metric(rs, "spillway_router_asks_total", `by="store"`),
		cpu: w.c.Store().CPU(),
	}
}

func (w *world) measure(what string) (*Return, error) {
	before := w.storeWork()
	began := time.Now()
	if err := w.gen.Back(w.ctx, w.window()); err != nil {
		return nil, err
	}
	expected, _ := w.pub.expected(w.members)
	ctx, cancel := context.WithTimeout(w.ctx, w.window()+2*time.Minute)
	defer cancel()
	late := w.gen.AwaitUp(ctx, w.o.Clients)
	if late == nil {
		late = w.gen.AwaitDeliveries(ctx, expected)
	}
	all := time.Since(began)
	if late != nil { // a verdict
		w.step("not everybody is back: %v", late)
	}
	if err := w.pause(headsChecked); err != nil {
		return nil, err
	}
	after := w.storeWork()
	seen, err := w.gen.Report(w.ctx)
	if err != nil {
		return nil, err
	}
	r := &Return{
		What: what, Clients: w.o.Clients, Channels: len(w.pub.channels), Behind: behind, CaughtUp: outageOf(&seen.CaughtUp),
		Queries: after.queries - before.queries, Memory: after.memory - before.memory, Store: after.store - before.store,
		StoreCPU: after.cpu - before.cpu, Refused: seen.Phase.Refused, took: time.Since(began),
	}
	first := int(began.Sub(seen.Start) / loadgen.Bucket)
	r.AllMs = all.Milliseconds()
	r.WelcomeMs = last(cut(seen.Arrivals, first)).Milliseconds()
	if r.Queries > 0 {
		r.PerRead = (after.questions - before.questions) / r.Queries
	}
	for _, n := range w.c.Routers() {
		r.Peak = max(r.Peak, w.metric([]*cluster.Node{n}, "spillway_router_peak_store_reads", ""))
	}
	w.step("%s: %.0f queries, p99 from resume to caught up %d ms", what, r.Queries, r.CaughtUp.P99)
	return r, nil
}

// newRouters ends all routers in order and starts them again, with nothing in memory.
func (w *world) newRouters(settings string) error {
	for _, n := range w.c.Routers() {
		if err := n.Stop(10 * time.Second); err != nil {
			return err
		}
		if err := n.Configure(settings); err != nil {
			return err
		}
	}
	w.newest = time.Now()
	for _, n := range w.c.Routers() {
		if err := n.Start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	for _, n := range w.c.Routers() {
		if err := w.c.AwaitReady(ctx, n); err != nil {
			return err
		}
	}
	return w.pause(4 * time.Second) // edges try again after 3 s at most
}

// single asks the same database once for each client, past routers and their memory, with
// as many queries at once as the routers may have: what no batching would cost.
func (w *world) single() error {
	cfg := postgres.Default()
	cfg.DSN, cfg.Migrate = w.c.DSN(), false
	cfg.ReadConns = readsAtOnce * len(w.c.Routers())
	store, err := postgres.Open(w.ctx, cfg)
	if err != nil {
		return err
	}
	defer store.Close()
	before, began := w.c.Store().CPU(), time.Now()
	var mu sync.Mutex // guards next and err
	next := 0
	var workers sync.WaitGroup
	for range cfg.ReadConns {
		workers.Go(func() { // ends when all were asked for; waited for below
			for {
				mu.Lock()
				i := next
				next++
				failed := err
				mu.Unlock()
				if i >= w.o.Clients || failed != nil {
					return
				}
				name := w.pub.channels[i*len(w.pub.channels)/w.o.Clients]
				_, e := store.Read(w.ctx, []history.Range{{Channel: name, After: 2 * behind, Limit: behind, MaxBytes: 256 << 10}})
				if e != nil {
					mu.Lock()
					err = e
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	if err != nil {
		return err
	}
	w.report.Returns = append(w.report.Returns, &Return{
		What: "straight at the store, simulated: a query for each client", Clients: w.o.Clients, Channels: len(w.pub.channels), Behind: behind,
		Queries: float64(w.o.Clients), PerRead: 1, Peak: float64(cfg.ReadConns), Store: float64(w.o.Clients),
		StoreCPU: w.c.Store().CPU() - before, WelcomeMs: time.Since(began).Milliseconds(), AllMs: time.Since(began).Milliseconds(),
	})
	w.step("%d single queries straight at the store: %.1f s", w.o.Clients, time.Since(began).Seconds())
	return nil
}

// liftResumes has the resume lanes of all edges together take as many as come back.
func (w *world) liftResumes() {
	ctx, cancel := context.WithTimeout(w.ctx, callTime)
	defer cancel()
	each := (returnRate + w.o.Edges - 1) / w.o.Edges
	yaml := fmt.Sprintf("admission: {resume_per_second: %d, resume_burst: %d}\nrebalance: {off: true}", each, each/10)
	if _, err := w.admin.PutSettings(ctx, &routerv1.PutSettingsRequest{Yaml: yaml}); err != nil {
		w.step("the resume lane could not be changed: %v", err)
		return
	}
	w.step("the resume lanes are lifted to %d clients a second, %d at each edge, by hot reload", returnRate, each)
}

// printReturns is the table of a backfill, for people and for Markdown.
func (r *Report) printReturns(out io.Writer) {
	pf := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
	pf("\n| %d clients, %d events behind | last welcomed / all caught up, s | resume to caught up p50 / p99, ms | queries | questions a query | at once | answers from memory / store | CPU of PostgreSQL, ms |\n|---|---|---|---|---|---|---|---|\n", r.Clients, behind)
	for _, b := range r.Returns {
		caughtUp := "not measured"
		if b.CaughtUp.Clients > 0 {
			caughtUp = fmt.Sprintf("%d / %d", b.CaughtUp.P50, b.CaughtUp.P99)
		}
		pf("| %d channels, %s | %.1f / %.1f | %s | %.0f | %.0f | %.0f | %.0f / %.0f | %d |\n", b.Channels, b.What, float64(b.WelcomeMs)/1000, float64(b.AllMs)/1000,
			caughtUp, b.Queries, b.PerRead, b.Peak, b.Memory, b.Store, b.StoreCPU.Milliseconds())
	}
}
