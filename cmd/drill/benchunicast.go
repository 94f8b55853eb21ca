package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/cmd/internal/run"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// benchUnicastCmd measures events of which each has one receiver: what an event costs at
// the router, the bus and the edge together. Each of them is a process of its own.
type benchUnicastCmd struct {
	Conns   int           `help:"Clients, each subscribed to a channel of its own." default:"10000"`
	Batch   int           `help:"Events of a call of PublishBatch." default:"100"`
	Callers int           `help:"Backends; each publishes on channels of its own, one call after the other." default:"4"`
	Ahead   int           `help:"Events that were acked and not delivered yet, at most." default:"1000"`
	History []string      `help:"Where history is kept, a phase each: memory (durability none), sqlite, postgres (both committed; its own CPU is not counted)." enum:"memory,sqlite,postgres" default:"memory,sqlite"`
	Time    time.Duration `help:"Of a phase." default:"5s"`
	Rounds  int           `help:"Times that all is measured." default:"1"`
	Binary  []string      `help:"Builds of spillway to measure in turns; default: this one." type:"path"`
}

// Run prints a table in Markdown.
func (c *benchUnicastCmd) Run(e *env) error {
	if c.Conns < 100 || c.Conns > loadgen.MaxConns-500 || c.Batch < 1 || c.Batch > 1000 || c.Callers < 1 || c.Callers > 64 || c.Time <= 0 {
		return run.Usagef("--conns must be 100 to %d, --batch 1 to 1,000, --callers 1 to 64, --time above 0", loadgen.MaxConns-500)
	}
	if len(c.Binary) == 0 {
		c.Binary = []string{""}
	}
	fmt.Printf("%d clients with a channel each, %d events of %d B a call, %d callers; us of CPU an event:\n\n", c.Conns, c.Batch, benchPayload, c.Callers)
	fmt.Println("| build | history | router + bus + edge | sum | events/s | p50 / p99, ms | load generator |\n|---|---|---|---|---|---|---|")
	for range c.Rounds {
		for i, binary := range c.Binary {
			for _, history := range c.History {
				if err := c.one(e.ctx, i+1, binary, history); err != nil {
					return fmt.Errorf("%s: %w", history, err)
				}
			}
		}
	}
	return nil
}

// unicast is one phase.
type unicast struct {
	cmd   *benchUnicastCmd
	c     *cluster.Cluster
	gen   *loadgen.Parent
	conn  *grpc.ClientConn
	seqs  []uint64 // last number of each channel; owned by the channel's caller
	acked atomic.Uint64
}

func (c *benchUnicastCmd) one(ctx context.Context, build int, program, history string) (err error) {
	u := &unicast{cmd: c, seqs: make([]uint64, c.Conns)}
	var binary []string // none: this program
	if program != "" {
		binary = []string{program}
	}
	durability, store := "committed", cluster.SQLite
	switch history {
	case "memory":
		durability = "none"
	case "postgres":
		store = cluster.Postgres
	}
	u.c, err = startOneEdge(ctx, cluster.Config{Binary: binary, Store: store}, ", history_size: 100, durability: "+durability)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.c.Close()) }()
	router, edge := u.c.Routers()[0], u.c.Edges()[0]
	if u.conn, err = u.c.Dial(router); err != nil {
		return err
	}
	if err := u.connect(ctx, edge); err != nil {
		return err
	}
	defer u.gen.Close()
	if err := u.phase(ctx, time.Second); err != nil { // heads are loaded, buffers have grown
		return err
	}
	if err := u.gen.Mark(ctx, history); err != nil {
		return err
	}
	parts := [3]*process.Process{router.Process, u.c.Infra()[0], edge.Process}
	var before, spent [3]time.Duration
	for i, p := range parts {
		before[i] = p.CPU()
	}
	from := u.acked.Load()
	began := time.Now()
	if err := u.phase(ctx, c.Time); err != nil {
		return err
	}
	took := time.Since(began)
	events := float64(u.acked.Load() - from)
	for i, p := range parts {
		spent[i] = p.CPU() - before[i]
	}
	report, err := u.gen.Report(ctx)
	if err != nil {
		return err
	}
	if t := &report.Total; !t.Clean() || t.SeqSkips > 0 || t.Deliveries != u.acked.Load() {
		return fmt.Errorf("%d events were acked, clients saw %+v", u.acked.Load(), *t)
	}
	us := func(d time.Duration) float64 { return float64(d.Microseconds()) / events }
	ms := func(q float64) float64 { return float64(report.Latency.Quantile(q).Microseconds()) / 1000 }
	fmt.Printf("| %d | %s | %.1f + %.1f + %.1f | %.1f | %.0f | %.1f / %.1f | %.1f |\n", build, history, us(spent[0]), us(spent[1]), us(spent[2]),
		us(spent[0]+spent[1]+spent[2]), events/took.Seconds(), ms(0.5), ms(0.99), us(report.CPU))
	return nil
}

const unicastFormat = "bench:%d"

func unicastChannel(n int) string { return "bench:" + strconv.Itoa(n) }

func (u *unicast) connect(ctx context.Context, edge *cluster.Node) (err error) {
	cfg := loadgen.Default()
	cfg.Targets, cfg.Max, cfg.Rate, cfg.CheckPayload = []string{edge.URL()}, u.cmd.Conns, 3000, true
	cfg.Subscriptions = []loadgen.Subscription{{Format: unicastFormat, Every: 1}}
	if u.gen, err = loadgen.Start(ctx, loadgen.ParentConfig{Children: 1}, cfg); err != nil {
		return err
	}
	if err = connect(ctx, u.gen, u.cmd.Conns); err == nil {
		err = u.gen.Notify(ctx, 100)
	}
	if err != nil {
		_ = u.gen.Close()
	}
	return err
}

// phase publishes for a while and waits until everything has arrived.
func (u *unicast) phase(ctx context.Context, d time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, benchTime)
	defer cancel()
	until := time.Now().Add(d)
	errs := make([]error, u.cmd.Callers)
	var callers sync.WaitGroup
	for i := range u.cmd.Callers {
		callers.Go(func() { errs[i] = u.caller(wait, i, until) }) // ends with its time; waited for below
	}
	callers.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return u.gen.AwaitDeliveries(wait, u.acked.Load())
}

// caller has the channels whose number leaves i when divided by the callers, so that the
// numbers in its payloads rise in each.
func (u *unicast) caller(ctx context.Context, i int, until time.Time) error {
	to := routerv1.NewPublisherServiceClient(u.conn)
	rnd := rand.New(rand.NewPCG(uint64(i), uint64(until.UnixNano())))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	own := (u.cmd.Conns - i + u.cmd.Callers - 1) / u.cmd.Callers
	for time.Now().Before(until) {
		if u.acked.Load() > u.gen.Deliveries()+uint64(u.cmd.Ahead) {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		request := &routerv1.PublishBatchRequest{Publications: make([]*routerv1.Publication, u.cmd.Batch)}
		for j := range request.Publications {
			n := i + u.cmd.Callers*rnd.IntN(own)
			u.seqs[n]++
			name := unicastChannel(n)
			data := payload.Append(nil, name, u.seqs[n], time.Now(), benchPayload)
			request.Publications[j] = &routerv1.Publication{Channel: name, Data: &routerv1.Publication_Json{Json: string(data)}}
		}
		response, err := to.PublishBatch(ctx, request)
		if err != nil {
			return err
		}
		for _, r := range response.Results {
			if f := r.GetFailure(); f != nil {
				return fmt.Errorf("publish: %s", f.Message)
			}
		}
		u.acked.Add(uint64(len(response.Results)))
	}
	return nil
}
