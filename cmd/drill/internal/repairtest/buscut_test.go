package repairtest

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/cmd/drill/internal/clustertest"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/upstream"
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/peers"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

var (
	edgesFlag    = flag.Int("edges", 5, "edges that the bus is cut from")
	channelsFlag = flag.Int("channels", 400, "channels that an edge carries")
	distinctFlag = flag.Int("distinct", 800, "channels that exist")
	rateFlag     = flag.Int("rate", 200, "events published in a second while the bus is cut")
	cutFlag      = flag.Duration("cut", 4*time.Second, "how long the bus is cut")
)

// bus is one that all edges were cut from at the same moment: nothing comes, and once it
// is back they are told that the connection was away.
type bus struct {
	cutAt   atomic.Int64 // unix ns; 0: it works
	returns atomic.Uint64
	router  *presence.Snapshot
}

func (b *bus) Interest(string, int) error { return nil }
func (b *bus) Renew(string, int) error    { return nil }
func (b *bus) Drop(string, int)           {}
func (b *bus) Disruptions(int) uint64     { return b.returns.Load() }

func (b *bus) Receive(ctx context.Context, _ int, _ [][]byte) ([][]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (b *bus) Snapshot() *presence.Snapshot { return b.router }

func (b *bus) LastHeard(presence.Key) time.Time {
	if at := b.cutAt.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Now()
}

// edge is all of an edge but its sockets: the table of channels and the way to routers.
// It is the sink of its own table.
type edge struct {
	id       int
	registry *prometheus.Registry
	table    *feed.Table
	world    *world

	mu       sync.Mutex        // guards below; the table has one shard
	at       map[string]uint64 // delivered
	verdicts int
	faults   []string
}

// world is many edges and what they heard.
type world struct {
	bus       *bus
	edges     []*edge
	delivered atomic.Int64

	mu    sync.Mutex // guards below
	delay []time.Duration
}

func (e *edge) Live(channel string, _ uint64, frames []feed.Frame, _ bool) {
	now := time.Now().UnixMilli()
	e.mu.Lock()
	for _, f := range frames {
		if f.Offset != e.at[channel]+1 && len(e.faults) < 10 {
			e.faults = append(e.faults, fmt.Sprintf("%s: %d after %d", channel, f.Offset, e.at[channel]))
		}
		e.at[channel] = f.Offset
	}
	e.mu.Unlock()
	e.world.mu.Lock()
	for _, f := range frames {
		e.world.delay = append(e.world.delay, time.Duration(now-int64(binary.BigEndian.Uint64(f.Text)))*time.Millisecond)
	}
	e.world.mu.Unlock()
	e.world.delivered.Add(int64(len(frames)))
}

func (e *edge) Gap(g feed.Gap) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, fmt.Sprintf("%s: gap to %d: %s", g.Channel, g.Offset, g.Reason))
}

func (e *edge) Piece(p feed.Piece) {
	if p.Status == feed.Pending {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.verdicts++
	e.at[p.Channel] = p.Head
}

// startEdge runs one until the test ends.
func (w *world) startEdge(t testing.TB, id int) *edge {
	t.Helper()
	e := &edge{id: id, registry: prometheus.NewRegistry(), world: w, at: make(map[string]uint64)}
	conns := peers.New(peers.Config{})
	uc := upstream.Default()
	uc.Edge, uc.View, uc.Peers, uc.Registry = fmt.Sprint("e", id), w.bus, conns, e.registry
	up, err := upstream.New(uc)
	if err != nil {
		t.Fatal(err)
	}
	fc := feed.Default()
	fc.Shards, fc.View, fc.Registry = 1, w.bus, e.registry
	fc.Encode = func(_ string, _ uint64, ev *gatewayv1.BusEvent) []byte {
		return binary.BigEndian.AppendUint64(nil, ev.TimeMs)
	}
	table, err := feed.New(fc, w.bus, up, []feed.Sink{e})
	if err != nil {
		t.Fatal(err)
	}
	e.table = table
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = up.Run(ctx) }) // both end with ctx; the cleanup waits
	running.Go(func() { _ = table.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		conns.Close()
	})
	return e
}

// carry subscribes all edges to all that they carry, a few hundred at a time: not the
// storm is looked at here.
func (w *world) carry(t testing.TB) {
	t.Helper()
	const step = 200
	for from := 0; from < *channelsFlag; from += step {
		to := min(from+step, *channelsFlag)
		for _, e := range w.edges {
			for j := from; j < to; j++ {
				e.table.Pull(feed.Pull{Conn: 1, Sub: uint64(j), Channel: e.channel(j), First: true, MaxBytes: 1 << 16})
			}
		}
		clustertest.Eventually(t, time.Minute, "the subscriptions have their verdicts", func() bool {
			for _, e := range w.edges {
				e.mu.Lock()
				n := e.verdicts
				e.mu.Unlock()
				if n < to {
					return false
				}
			}
			return true
		})
	}
}

// channel is the j-th that an edge carries; edges share channels evenly.
func (e *edge) channel(j int) string { return channelName(carried(e.id, j)) }

func carried(id, j int) int { return (id**distinctFlag / *edgesFlag + j) % *distinctFlag }

func channelName(i int) string { return fmt.Sprintf("chat:room-%07d", i) }

// asks is how many questions of each kind all edges have put, and how many had to be
// put again.
func (w *world) asks() map[string]float64 {
	sum := make(map[string]float64)
	for _, e := range w.edges {
		for name, v := range gather(e.registry) {
			sum[name] += v
		}
	}
	return sum
}

// All edges lose the bus at the same moment while events are published; the routers stay
// within reach. Every event arrives by repair, in order, once, and the router is not
// overrun. The large form: go test ./cmd/drill/internal/repairtest -run ToAllEdges -v -edges 100
// -channels 10000 -distinct 100000 -rate 5000 -cut 20s -timeout 10m
func TestWhatABusLostToAllEdgesIsRepairedPaced(t *testing.T) {
	r := startChild(t)
	w := &world{bus: &bus{router: presence.NewSnapshot([]*presence.Member{routerMember(r.addr)}, 1)}}
	began := time.Now()
	for i := range *edgesFlag {
		w.edges = append(w.edges, w.startEdge(t, i))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("edges: %v\nrouter: %v", w.asks(), r.metrics())
		}
	})
	w.carry(t)
	rest, _ := r.resident()
	t.Logf("%d edges with %d channels each of %d: subscribed after %v, router %.0f MiB, %v of CPU",
		*edgesFlag, *channelsFlag, *distinctFlag, time.Since(began).Round(time.Millisecond), rest, r.CPU())
	clustertest.Eventually(t, time.Minute, "the checks of new interests are over", func() bool {
		return w.asks()["spillway_feed_asks_total,head"] >= float64(*edgesFlag**channelsFlag)
	})

	before, cpu := w.asks(), r.CPU()
	r.ForgetPeak()
	rest, _ = r.resident()
	cut := time.Now()
	w.bus.cutAt.Store(cut.UnixNano())
	expected := publishFor(t, r, *cutFlag)
	duringDelivered := w.delivered.Load()
	during, cpuCut := w.asks(), r.CPU()
	w.bus.cutAt.Store(0)
	w.bus.returns.Add(1)
	back := time.Now()
	wait := 30*time.Second + *cutFlag
	var repaired time.Duration
	for w.delivered.Load() < expected {
		if time.Since(back) > 10*wait {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	repaired = time.Since(back)
	after, cpuAll := w.asks(), r.CPU()
	m := r.metrics()
	_, peak := r.resident()

	report := func(name string, from, to map[string]float64, took time.Duration, cpu time.Duration) {
		d := func(key string) float64 { return to[key] - from[key] }
		asked := d("spillway_feed_asks_total,head") + d("spillway_feed_asks_total,repair") + d("spillway_feed_asks_total,pull")
		t.Logf("%s, %v: %.0f questions (%.0f/s; heads %.0f, repairs %.0f), not answered in time %.0f, stream lost %.0f, too many %.0f, router %v of CPU (%.0f%% of one core, %.1f us a question)",
			name, took.Round(time.Millisecond), asked, asked/took.Seconds(), d("spillway_feed_asks_total,head"), d("spillway_feed_asks_total,repair"),
			d("spillway_upstream_questions_total,deadline"), d("spillway_upstream_questions_total,stream_failed"), d("spillway_upstream_questions_total,too_many"),
			cpu, 100*cpu.Seconds()/took.Seconds(), float64(cpu.Microseconds())/max(asked, 1))
	}
	report("cut", before, during, back.Sub(cut), cpuCut-cpu)
	report("after the return", during, after, repaired, cpuAll-cpuCut)
	t.Logf("%d deliveries owed, %d came during the cut; all were there %v after the return; router %.0f MiB before, %.0f MiB at the peak; answers shed %.0f, reads refused %.0f",
		expected, duringDelivered, repaired.Round(time.Millisecond), rest, peak, m["spillway_router_answers_shed_total"], m["spillway_router_reads_refused_total"])
	w.mu.Lock()
	slices.Sort(w.delay)
	if n := len(w.delay); n > 0 {
		t.Logf("from publish to delivery: p50 %v, p99 %v, longest %v", w.delay[n/2], w.delay[n*99/100], w.delay[n-1])
	}
	w.mu.Unlock()
	if got := w.delivered.Load(); got != expected {
		t.Errorf("%d of %d deliveries", got, expected)
	}
	for i, e := range w.edges {
		e.mu.Lock()
		if len(e.faults) > 0 {
			t.Errorf("edge %d: %v", i, e.faults)
		}
		e.mu.Unlock()
	}
}

// publishFor publishes at the rate for a while and tells how many deliveries that makes.
func publishFor(t *testing.T, r *child, d time.Duration) (deliveries int64) {
	t.Helper()
	client := routerv1.NewPublisherServiceClient(r.conn)
	data := fmt.Sprintf(`{"text":"%0100d"}`, 0)
	carriers := make([]int, *distinctFlag)
	for id := range *edgesFlag {
		for j := range *channelsFlag {
			carriers[carried(id, j)]++
		}
	}
	const batches = 20 // a second
	tick := time.NewTicker(time.Second / batches)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		var in []*routerv1.Publication
		for range *rateFlag / batches {
			i := rand.IntN(*distinctFlag)
			deliveries += int64(carriers[i])
			in = append(in, &routerv1.Publication{Channel: channelName(i), Data: &routerv1.Publication_Json{Json: data}})
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		out, err := client.PublishBatch(ctx, &routerv1.PublishBatchRequest{Publications: in})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, result := range out.Results {
			if result.GetPlaced() == nil {
				t.Fatalf("not acked: %v", result)
			}
		}
	}
	return deliveries
}
