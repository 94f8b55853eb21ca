// Package pubbench measures durable publishes: how many a second, how long an ack takes,
// what an event costs, and how large the commits became.
//
// `go run ./cmd/drill bench-publish` calls Run. It starts clusters of a router, a bus and a store
// (package cluster), publishes from this process over gRPC, and ends all that it started.
//
// Every publisher has one event after the other acked: over PublishStream it keeps a
// window of requests unanswered, with unary calls one. Channels are drawn at random, so
// nearly every event of a commit moves a channel row of its own. CPU is user and system
// time of a process over a phase, divided by its events. The floor is an empty unary call
// of the same router from as many callers.
//
// Left out on purpose: subscribers (package drill has them).
package pubbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// Options of a run.
type Options struct {
	Stores     []string      // cluster.SQLite, cluster.Postgres
	Publishers []int         // at once
	Channels   int           // that events are spread over
	Bytes      int           // of an event
	Window     int           // requests of a stream that are unanswered at most
	Batch      int           // events of a request
	Time       time.Duration // of a phase
	Keep       string        // folder for configurations and logs; "": removed at the end
	Out        io.Writer     // what it does, for people; nil: nothing
}

// Default is what the figures in router/FIGURES.md were made with.
func Default() Options {
	return Options{
		Stores: []string{cluster.SQLite, cluster.Postgres}, Publishers: []int{1, 16, 256},
		Channels: 10_000, Bytes: 128, Window: 16, Batch: 1, Time: 4 * time.Second,
	}
}

// Validate reports all problems at once.
func (o *Options) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{{"channels", o.Channels}, {"bytes", o.Bytes}, {"window", o.Window}, {"batch", o.Batch}, {"time", int(o.Time)}} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("%s: %d: must be above 0", f.name, f.value))
		}
	}
	for _, n := range o.Publishers {
		if n < 1 || n > 10_000 {
			errs = append(errs, fmt.Errorf("publishers: %d: must be 1 to 10,000", n))
		}
	}
	return errors.Join(errs...)
}

// Row is one phase.
type Row struct {
	Store      string  `json:"store"`
	How        string  `json:"how"` // stream, unary, empty
	Publishers int     `json:"publishers"`
	PerSecond  float64 `json:"per_second"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Router     float64 `json:"router_us"` // of CPU an event
	Database   float64 `json:"database_us"`
	Client     float64 `json:"client_us"`
	Commit     float64 `json:"events_per_commit"` // mean
	Small      float64 `json:"commits_to_8"`      // share of commits with at most 8 events
	Large      float64 `json:"commits_over_128"`
	Failed     uint64  `json:"failed"`
}

// Report is one run. It names no machine and no path.
type Report struct {
	Window int   `json:"window"`
	Batch  int   `json:"batch"`
	Bytes  int   `json:"bytes"`
	Rows   []Row `json:"rows"`
}

// Run measures each store in turn.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	report := &Report{Window: o.Window, Batch: o.Batch, Bytes: o.Bytes}
	for _, store := range o.Stores {
		if err := one(ctx, &o, store, report); err != nil {
			return report, fmt.Errorf("%s: %w", store, err)
		}
	}
	return report, nil
}

// bench is one cluster while it is measured.
type bench struct {
	o      *Options
	c      *cluster.Cluster
	router *cluster.Node
	conns  []*grpc.ClientConn // publishers take turns
	data   string
	names  []string
}

const clientConns = 4

func one(ctx context.Context, o *Options, store string, report *Report) (err error) {
	c, err := cluster.Start(ctx, cluster.Config{
		Dir: o.Keep, Routers: 1, Store: store, Namespaces: "{bench: {history_size: 100000, history_ttl: 1h}}",
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	b := &bench{o: o, c: c, router: c.Routers()[0], data: `"` + strings.Repeat("x", max(o.Bytes-2, 0)) + `"`}
	for i := range o.Channels {
		b.names = append(b.names, "bench:"+strconv.Itoa(i))
	}
	for range clientConns {
		conn, err := c.Dial(b.router)
		if err != nil {
			return err
		}
		b.conns = append(b.conns, conn)
	}
	if err := b.load(ctx); err != nil { // heads of all channels are known: that is not what is measured
		return err
	}
	for _, n := range o.Publishers {
		for _, how := range []string{"stream", "unary", "empty"} {
			row, err := b.phase(ctx, store, how, n)
			if err != nil {
				return err
			}
			report.Rows = append(report.Rows, row)
			fmt.Fprintf(o.Out, "%s, %d publishers, %s: %.0f/s, p99 %.1f ms\n", store, n, how, row.PerSecond, row.P99)
		}
	}
	return nil
}

func (b *bench) load(ctx context.Context) error {
	to := routerv1.NewPublisherServiceClient(b.conns[0])
	for _, some := range chunks(b.names, 1000) {
		publications := make([]*routerv1.Publication, len(some))
		for i, name := range some {
			publications[i] = &routerv1.Publication{Channel: name, Data: &routerv1.Publication_Json{Json: b.data}}
		}
		if _, err := to.PublishBatch(ctx, &routerv1.PublishBatchRequest{Publications: publications}); err != nil {
			return err
		}
	}
	return nil
}

func chunks(all []string, n int) (out [][]string) {
	for c := range slices.Chunk(all, n) {
		out = append(out, c)
	}
	return out
}

// tally is what publishers of a phase have seen.
type tally struct {
	events, failed atomic.Uint64

	mu    sync.Mutex // guards times
	times []time.Duration
	err   error
}

// publisher is one; owned by its goroutine.
type publisher struct {
	b     *bench
	conn  *grpc.ClientConn
	t     *tally
	rand  *rand.Rand
	times []time.Duration
}

func (b *bench) phase(ctx context.Context, store, how string, n int) (Row, error) {
	t := &tally{}
	before := b.cpu()
	began := time.Now()
	phase, end := context.WithDeadline(ctx, began.Add(b.o.Time))
	defer end()
	var all sync.WaitGroup
	for i := range n {
		p := &publisher{b: b, conn: b.conns[i%len(b.conns)], t: t, rand: rand.New(rand.NewPCG(uint64(i), 1))}
		all.Go(func() { p.run(ctx, phase, how) }) // ends soon after its phase; waited for below
	}
	all.Wait()
	took := time.Since(began)
	after := b.cpu()
	events := float64(max(t.events.Load(), 1))
	slices.Sort(t.times)
	at := func(q float64) float64 {
		if len(t.times) == 0 {
			return 0
		}
		return float64(t.times[int(q*float64(len(t.times)-1))].Microseconds()) / 1000
	}
	us := func(a, b time.Duration) float64 { return float64((b - a).Microseconds()) / events }
	row := Row{
		Store: store, How: how, Publishers: n, PerSecond: events / took.Seconds(), P50: at(0.5), P99: at(0.99), Failed: t.failed.Load(),
		Router: us(before.router, after.router), Database: us(before.database, after.database), Client: us(before.client, after.client),
	}
	if commits := after.commits - before.commits; commits > 0 {
		row.Commit = (after.committed - before.committed) / commits
		row.Small, row.Large = (after.small-before.small)/commits, 1-(after.medium-before.medium)/commits
	}
	return row, t.err
}

func (p *publisher) run(ctx, phase context.Context, how string) {
	var err error
	switch how {
	case "stream":
		err = p.stream(ctx, phase)
	case "unary":
		err = p.unary(ctx, phase)
	default:
		err = p.empty(ctx, phase)
	}
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	p.t.times = append(p.t.times, p.times...)
	if p.t.err == nil {
		p.t.err = err
	}
}

func (p *publisher) publication() *routerv1.Publication {
	name := p.b.names[p.rand.IntN(len(p.b.names))]
	return &routerv1.Publication{Channel: name, Data: &routerv1.Publication_Json{Json: p.b.data}}
}

// stream keeps a window of requests unanswered. Answers come in order.
func (p *publisher) stream(ctx, phase context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := routerv1.NewPublisherServiceClient(p.conn).PublishStream(ctx)
	if err != nil {
		return err
	}
	sent := make(chan time.Time, p.b.o.Window)
	failed := make(chan error, 1)
	// It sends until the phase is over; the stream's end ends it too. Waited for by the
	// answers, unless they failed: each place in sent is one of them.
	go func() {
		defer close(sent)
		for phase.Err() == nil {
			request := &routerv1.PublishStreamRequest{Publications: make([]*routerv1.Publication, p.b.o.Batch)}
			for i := range request.Publications {
				request.Publications[i] = p.publication()
			}
			select {
			case sent <- time.Now():
			case <-ctx.Done():
				return
			}
			if err := stream.Send(request); err != nil {
				failed <- err
				return
			}
		}
		failed <- stream.CloseSend()
	}()
	for at := range sent {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		p.times = append(p.times, time.Since(at))
		for _, r := range response.Results {
			p.count(r.GetPlaced() != nil)
		}
	}
	return <-failed
}

func (p *publisher) unary(ctx, phase context.Context) error {
	to := routerv1.NewPublisherServiceClient(p.conn)
	for phase.Err() == nil {
		began := time.Now()
		_, err := to.Publish(ctx, &routerv1.PublishRequest{Publication: p.publication()})
		p.times = append(p.times, time.Since(began))
		p.count(err == nil)
	}
	return nil
}

func (p *publisher) empty(ctx, phase context.Context) error {
	to := grpc_health_v1.NewHealthClient(p.conn)
	for phase.Err() == nil {
		began := time.Now()
		if _, err := to.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
			return err
		}
		p.times = append(p.times, time.Since(began))
		p.count(true)
	}
	return nil
}

func (p *publisher) count(ok bool) {
	if ok {
		p.t.events.Add(1)
	} else {
		p.t.failed.Add(1)
	}
}

// spent is what all have used until a moment.
type spent struct {
	router, database, client          time.Duration
	commits, committed, small, medium float64
}

func (b *bench) cpu() spent {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	s := spent{router: b.router.CPU(), client: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
	if pg := b.c.Store(); pg != nil {
		s.database = pg.CPU()
	}
	_, text := b.router.Get(context.Background(), "/metrics")
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			continue
		}
		switch name {
		case "spillway_router_commit_events_count":
			s.commits = n
		case "spillway_router_commit_events_sum":
			s.committed = n
		case `spillway_router_commit_events_bucket{le="8"}`:
			s.small = n
		case `spillway_router_commit_events_bucket{le="128"}`:
			s.medium = n
		}
	}
	return s
}

// Print is a table in Markdown.
func (r *Report) Print(w io.Writer) {
	pf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	pf("Events of %d B, %d a request, %d requests of a stream unanswered:\n\n", r.Bytes, r.Batch, r.Window)
	pf("| store, call | publishers | events/s | ack p50 / p99, ms | us of CPU an event: router + database + client | events a commit | commits of 1-8 / over 128 events |\n|---|---|---|---|---|---|---|\n")
	for i := range r.Rows {
		b := &r.Rows[i]
		commit, sizes := "", ""
		if b.Commit > 0 {
			commit, sizes = fmt.Sprintf("%.0f", b.Commit), fmt.Sprintf("%.0f %% / %.0f %%", 100*b.Small, 100*b.Large)
		}
		pf("| %s, %s | %d | %.0f | %.1f / %.1f | %.0f + %.0f + %.0f | %s | %s |\n", b.Store, b.How, b.Publishers, b.PerSecond, b.P50, b.P99,
			b.Router, b.Database, b.Client, commit, sizes)
		if b.Failed > 0 {
			pf("\n%d failed\n", b.Failed)
		}
	}
}
