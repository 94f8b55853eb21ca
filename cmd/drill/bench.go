package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/floor"
	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/cmd/drill/internal/relay"
	"github.com/spillway-io/spillway/cmd/internal/run"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// benchCmd measures one edge: memory of idle connections, and deliveries beside a
// bare write(2) loop of the same run. Everything is a process of its own.
type benchCmd struct {
	Conns  int `help:"Connections, each subscribed to one channel." default:"10000"`
	Events int `help:"Events to deliver to all of them, in each phase." default:"30"`
}

const (
	benchChannel = "bench:all"
	benchPayload = 128
	benchTime    = 2 * time.Minute // for any one step
	benchQuiet   = 5 * time.Second // before memory is read
)

// loadgenCmd, relayCmd and floorCmd are the children of benchmarks and drills.
type loadgenCmd struct{}

func (loadgenCmd) Run(*env) error { return loadgen.Child() }

type relayCmd struct{}

func (relayCmd) Run(*env) error { return relay.Child() }

type floorCmd struct{}

func (floorCmd) Run(*env) error {
	return floor.Serve(floor.Config{Channel: benchChannel, PayloadBytes: benchPayload}, os.Stdin, os.Stdout)
}

// startOneEdge runs a cluster with one router and one edge that lets everybody in at once,
// for benchmarks.
func startOneEdge(ctx context.Context, cfg cluster.Config, settings string) (*cluster.Cluster, error) {
	cfg.Routers, cfg.Edges, cfg.SeparateInfra = 1, 1, true
	cfg.Namespaces = "{bench: {subscribe: everyone" + settings + "}}"
	cfg.Edge = func(*cluster.Cluster, int) string {
		return "auth: {anonymous: true}\nlimits: {max_conns: 19900, margin: 100}\nadmission: {fresh_per_second: 20000, fresh_burst: 20000, adaptive: false}\n"
	}
	return cluster.Start(ctx, cfg)
}

// bench is one run.
type bench struct {
	cmd  *benchCmd
	edge *cluster.Node
	pub  routerv1.PublisherServiceClient
	seq  uint64
}

// Run prints a table; it ends all that it started.
func (c *benchCmd) Run(e *env) (err error) {
	if c.Conns < 100 || c.Conns > loadgen.MaxConns-500 {
		return run.Usagef("--conns: %d: must be between 100 and %d", c.Conns, loadgen.MaxConns-500)
	}
	all, err := startOneEdge(e.ctx, cluster.Config{}, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	conn, err := all.Dial(all.Routers()[0])
	if err != nil {
		return err
	}
	b := &bench{cmd: c, edge: all.Edges()[0], pub: routerv1.NewPublisherServiceClient(conn)}
	if err := b.publish(e.ctx, 1); err != nil {
		return err
	}
	if err := b.measure(e.ctx); err != nil {
		return err
	}
	return b.floor(e.ctx)
}

// publish sends n events in one batch.
func (b *bench) publish(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req := &routerv1.PublishBatchRequest{}
	for range n {
		b.seq++
		data := payload.Append(nil, benchChannel, b.seq, time.Now(), benchPayload)
		req.Publications = append(req.Publications, &routerv1.Publication{
			Channel: benchChannel, Data: &routerv1.Publication_Json{Json: string(data)},
		})
	}
	resp, err := b.pub.PublishBatch(ctx, req)
	if err != nil {
		return err
	}
	for _, r := range resp.Results {
		if f := r.GetFailure(); f != nil {
			return fmt.Errorf("publish: %s", f.Message)
		}
	}
	return nil
}

// figures of the edge and of the load generator.
type figures struct {
	edge, generator int64 // bytes resident
	goroutines      int   // of the edge
}

func (b *bench) look(ctx context.Context, p *loadgen.Parent) (f figures) {
	f.edge, _ = b.edge.Resident()
	f.generator, _ = p.Usage()
	_, text := b.edge.Get(ctx, "/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			f.goroutines, _ = strconv.Atoi(strings.TrimSpace(rest))
		}
	}
	return f
}

// generator starts a load generator, and connects its clients one after the other.
func (b *bench) generator(ctx context.Context, target string) (*loadgen.Parent, error) {
	cfg := loadgen.Default()
	cfg.Targets, cfg.Max, cfg.Rate, cfg.CheckPayload = []string{target}, b.cmd.Conns, 3000, true
	cfg.Subscriptions = []loadgen.Subscription{{Format: benchChannel}}
	return loadgen.Start(ctx, loadgen.ParentConfig{Children: 1}, cfg)
}

func connect(ctx context.Context, p *loadgen.Parent, n int) error {
	ctx, cancel := context.WithTimeout(ctx, benchTime)
	defer cancel()
	if err := p.Want(n); err != nil {
		return err
	}
	return p.AwaitUp(ctx, n)
}

func (b *bench) measure(ctx context.Context) error {
	p, err := b.generator(ctx, b.edge.URL())
	if err != nil {
		return err
	}
	defer p.Close()
	if err := b.idle(ctx, p); err != nil {
		return err
	}
	return b.fanOut(ctx, p)
}

// idle connects a fifth and then all, and prints what one connection costs.
func (b *bench) idle(ctx context.Context, p *loadgen.Parent) error {
	var at [2]figures
	few := b.cmd.Conns / 5
	for i, n := range []int{few, b.cmd.Conns} {
		if err := connect(ctx, p, n); err != nil {
			return err
		}
		quiet := time.NewTimer(benchQuiet)
		select {
		case <-ctx.Done():
			quiet.Stop()
			return ctx.Err()
		case <-quiet.C:
		}
		at[i] = b.look(ctx, p)
	}
	conns := float64(b.cmd.Conns - few)
	fmt.Printf("idle, %d to %d connections of one subscription, no GC forced:\n", few, b.cmd.Conns)
	fmt.Printf("  RSS per connection         %8.0f B (whole process %.1f MB)\n", float64(at[1].edge-at[0].edge)/conns, float64(at[1].edge)/1e6)
	fmt.Printf("  goroutines per connection  %8.4f (%d in all)\n", float64(at[1].goroutines-at[0].goroutines)/conns, at[1].goroutines)
	fmt.Printf("  RSS per simulated client   %8.0f B (whole load generator %.1f MB)\n", float64(at[1].generator-at[0].generator)/conns, float64(at[1].generator)/1e6)
	return nil
}

// fanOut delivers events to all, one at a time and many at once.
func (b *bench) fanOut(ctx context.Context, p *loadgen.Parent) error {
	fmt.Printf("fan-out of %d B to %d connections:\n", benchPayload, b.cmd.Conns)
	if err := p.Notify(ctx, b.cmd.Conns); err != nil {
		return err
	}
	for _, window := range []int{1, 8, b.cmd.Events} {
		err := b.deliver(ctx, p, b.edge.Process, fmt.Sprintf("edge, %d outstanding", window), window, func(n int) error { return b.publish(ctx, n) })
		if err != nil {
			return err
		}
	}
	report, err := p.Report(ctx)
	if err != nil {
		return err
	}
	if !report.Total.Clean() {
		return fmt.Errorf("clients saw losses or doubles: %+v", report.Total)
	}
	return nil
}

// deliver has all events sent, a window of them at a time, and prints what a delivery cost
// the server and the load generator.
func (b *bench) deliver(ctx context.Context, p *loadgen.Parent, server *process.Process, what string, window int, send func(n int) error) error {
	_, generator := p.Usage()
	cpu, start, base := server.CPU(), time.Now(), p.Deliveries()
	for done := 0; done < b.cmd.Events; {
		n := min(window, b.cmd.Events-done)
		if err := send(n); err != nil {
			return err
		}
		done += n
		wait, cancel := context.WithTimeout(ctx, benchTime)
		err := p.AwaitDeliveries(wait, base+uint64(done)*uint64(b.cmd.Conns))
		cancel()
		if err != nil {
			return err
		}
	}
	n := float64(b.cmd.Events) * float64(b.cmd.Conns)
	_, spent := p.Usage()
	fmt.Printf("  %-22s %9.0f deliveries/s  %6.2f us CPU each  %6.2f us of the load generator\n", what, n/time.Since(start).Seconds(),
		float64((server.CPU()-cpu).Microseconds())/n, float64((spent-generator).Microseconds())/n)
	return nil
}

// floor does the same with a bare write(2) loop.
func (b *bench) floor(ctx context.Context) error {
	command, err := process.Self("floor")
	if err != nil {
		return err
	}
	bare, err := floor.Start(process.Config{Command: command})
	if err != nil {
		return err
	}
	defer bare.Kill()
	p, err := b.generator(ctx, bare.URL)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := connect(ctx, p, b.cmd.Conns); err != nil {
		return err
	}
	if err := p.Notify(ctx, b.cmd.Conns); err != nil {
		return err
	}
	return b.deliver(ctx, p, bare.Process, "bare write(2) loop", 1, bare.Write)
}
