package router

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	machine "github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

type silentBus struct{}

func (silentBus) Publish(*gatewayv1.Envelope) {}

// stores that a benchmark or test runs over.
func stores(t testing.TB) map[string]history.Store {
	cfg := sqlite.Default()
	cfg.Path = filepath.Join(t.TempDir(), "history.db")
	db, err := sqlite.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return map[string]history.Store{"memory": memory.New(memory.Default()), "sqlite": db}
}

// BenchmarkPublish measures the router without gRPC: batches of 100 events of
// 128 bytes on 1,000 channels from 16 publishers, up to the ack.
func BenchmarkPublish(b *testing.B) {
	for name, store := range stores(b) {
		for _, namespace := range []string{"chat", "brief"} {
			if namespace == "brief" && name != "memory" {
				continue
			}
			b.Run(name+"/"+namespace, func(b *testing.B) { benchmarkPublish(b, store, namespace) })
		}
	}
}

func benchmarkPublish(b *testing.B, store history.Store, namespace string) {
	n := startWith(b, store, func(c *Config) { c.CacheBytes = 64 << 20 }, func(d *Deps) { d.Bus = silentBus{} })
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("%s:%d", namespace, i)
	}
	data := make([]byte, 128)
	for i := range data {
		data[i] = '1'
	}
	const batch = 100
	engine := n.table
	b.ReportAllocs()
	b.SetParallelism(16 / runtime.GOMAXPROCS(0))
	spent := cpuTime()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		at := 0
		for {
			c := machine.NewCall(batch)
			pubs := make([]*machine.Publication, 0, batch)
			block := make([]machine.Publication, batch)
			for pb.Next() {
				p := &block[len(pubs)]
				p.Channel, p.Call = names[at%len(names)], c
				p.Namespace = n.namespaces.Of(p.Channel)
				p.Event.Data, _ = wire.CompactJSON(data)
				at += 7
				if pubs = append(pubs, p); len(pubs) == batch {
					break
				}
			}
			if len(pubs) < batch {
				return
			}
			for _, p := range pubs {
				engine.Publish(p)
			}
			for _, res := range c.Wait(context.Background(), pubs) {
				if res.Code != codes.OK {
					b.Errorf("%v", res)
					return
				}
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(cpuTime()-spent)/float64(b.N), "cpu-ns/op")
}

// BenchmarkPublishStream is the same through gRPC on loopback, client included.
func BenchmarkPublishStream(b *testing.B) {
	n := startWith(b, nil, func(c *Config) { c.CacheBytes = 64 << 20 }, func(d *Deps) { d.Bus = silentBus{} })
	data := fmt.Sprintf(`"%0126d"`, 1)
	const batch = 100
	request := &routerv1.PublishStreamRequest{}
	for i := range batch {
		request.Publications = append(request.Publications, event(fmt.Sprintf("chat:%d", i), data, ""))
	}
	stream, err := n.pub.PublishStream(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	spent := cpuTime()
	requests := (b.N + batch - 1) / batch
	go func() { // ends when all is sent
		for range requests {
			if stream.Send(request) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for range requests {
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(requests*batch)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(cpuTime()-spent)/float64(requests*batch), "cpu-ns/op")
}

// BenchmarkAskFromTail is one question that memory answers: 5 events of a channel.
func BenchmarkAskFromTail(b *testing.B) {
	cfg := testConfig("r1")
	r, err := New(cfg, Deps{Store: memory.New(memory.Default()), Bus: silentBus{}, Members: newMembers(snapshotOf(1, routerMember("r1", ""))), Peers: noPeers{}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.table.Run(ctx) }()  // waited for below
	go func() { ended <- r.writer.Run(ctx) }() // the same
	for range 10 {
		if res := r.publishForTest(attempt{channel: "chat:a", data: "1"}); res.Code != codes.OK {
			b.Fatal(res)
		}
	}
	defer func() {
		cancel()
		<-ended
		<-ended
	}()
	ask := position("chat:a", 1, 5)
	b.ReportAllocs()
	spent := cpuTime()
	b.ResetTimer()
	answered := make(chan struct{}, 1)
	var left atomic.Int64
	left.Store(int64(b.N))
	for range b.N {
		r.askForTest(ask, func() bool { return false }, func(a *gatewayv1.Answer) {
			if len(a.Events) != 5 {
				b.Error(a)
			}
			if left.Add(-1) == 0 {
				answered <- struct{}{}
			}
		})
	}
	<-answered
	b.ReportMetric(float64(cpuTime()-spent)/float64(b.N), "cpu-ns/op")
}

// cpuTime is what this process has used so far, in nanoseconds: on a machine that does
// other things too it says more than the clock.
func cpuTime() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
