package bus

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/presence/nats/natsserver"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	shapeEdges    = 8
	shapeChannels = 10_000
	shapeBytes    = 200
)

// shape is a way to bring events from an owner to the edges that want their channel.
// All of them count what arrives where it is wanted, after a look at the edge's table
// by the name that the message carries, as package feed does.
type shape struct {
	name string
	// listen makes an edge hear of the channels of its table.
	listen func(conn *nats.Conn, edge int, table map[string]int, in chan *nats.Msg) error
	// publish brings one event to who wants it; the events of one batch may travel
	// together until flush.
	publish func(conn *nats.Conn, channel int, event []byte) error
	flush   func(conn *nats.Conn) error
}

// wants holds, for each channel, the edges that have interest in it.
type wants [][]int

// BenchmarkShapes compares CPU time an event of a publisher, a server and eight edges
// together, over loopback, for three shapes of the bus (64 shards).
func BenchmarkShapes(b *testing.B) {
	names := make([]string, shapeChannels)
	for i := range names {
		names[i] = fmt.Sprintf("room:%d", i)
	}
	for _, interest := range []int{1, shapeEdges} {
		w := make(wants, shapeChannels)
		for i := range w {
			for k := range interest {
				w[i] = append(w[i], (i+k)%shapeEdges)
			}
		}
		for _, batch := range []int{1, 16, 128} {
			for _, s := range []shape{perChannel(names), perShard(names), perEdge(w)} {
				b.Run(fmt.Sprintf("edges=%d/batch=%d/%s", interest, batch, s.name), func(b *testing.B) {
					benchmarkShape(b, s, names, w, batch)
				})
			}
		}
	}
}

func perChannel(names []string) shape {
	subjects := make([]string, len(names))
	for i, name := range names {
		subjects[i] = wire.Subject("spillway", name)
	}
	return shape{
		name: "subject-per-channel",
		listen: func(conn *nats.Conn, _ int, table map[string]int, in chan *nats.Msg) error {
			for name := range table {
				if _, err := conn.ChanSubscribe(wire.Subject("spillway", name), in); err != nil {
					return err
				}
			}
			return nil
		},
		publish: func(conn *nats.Conn, channel int, event []byte) error { return conn.Publish(subjects[channel], event) },
		flush:   func(*nats.Conn) error { return nil },
	}
}

func perShard(names []string) shape {
	// A hash: the shards must not fall together with the edges.
	shard := func(channel int) string { return fmt.Sprintf("spillway.shard.%d", uint32(channel)*2_654_435_761>>26) }
	subjects := make([]string, len(names))
	for i := range names {
		subjects[i] = shard(i)
	}
	return shape{
		name: "shards",
		listen: func(conn *nats.Conn, _ int, table map[string]int, in chan *nats.Msg) error {
			heard := make(map[string]bool)
			for _, channel := range table {
				if s := shard(channel); !heard[s] {
					heard[s] = true
					if _, err := conn.ChanSubscribe(s, in); err != nil {
						return err
					}
				}
			}
			return nil
		},
		publish: func(conn *nats.Conn, channel int, event []byte) error { return conn.Publish(subjects[channel], event) },
		flush:   func(*nats.Conn) error { return nil },
	}
}

func perEdge(w wants) shape {
	subjects := make([]string, shapeEdges)
	for e := range subjects {
		subjects[e] = fmt.Sprintf("spillway.edge.%d", e)
	}
	pending := make([][]byte, shapeEdges)
	return shape{
		name: "inbox-per-edge",
		listen: func(conn *nats.Conn, edge int, _ map[string]int, in chan *nats.Msg) error {
			_, err := conn.ChanSubscribe(subjects[edge], in)
			return err
		},
		publish: func(_ *nats.Conn, channel int, event []byte) error {
			for _, e := range w[channel] {
				pending[e] = append(pending[e], event...)
			}
			return nil
		},
		flush: func(conn *nats.Conn) error {
			for e, p := range pending {
				if len(p) == 0 {
					continue
				}
				if err := conn.Publish(subjects[e], p); err != nil {
					return err
				}
				pending[e] = p[:0]
			}
			return nil
		},
	}
}

func benchmarkShape(b *testing.B, s shape, names []string, w wants, batch int) {
	server, err := natsserver.Start(b.Context(), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	var wanted, arrived atomic.Int64
	var readers sync.WaitGroup
	var conns []*nats.Conn
	var queues []chan *nats.Msg
	for e := range shapeEdges {
		table := make(map[string]int)
		for channel, edges := range w {
			for _, edge := range edges {
				if edge == e {
					table[names[channel]] = channel
				}
			}
		}
		conn, err := nats.Connect(server.URL())
		if err != nil {
			b.Fatal(err)
		}
		in := make(chan *nats.Msg, 65_536)
		if err := s.listen(conn, e, table, in); err != nil {
			b.Fatal(err)
		}
		if err := conn.Flush(); err != nil {
			b.Fatal(err)
		}
		conns, queues = append(conns, conn), append(queues, in)
		readers.Go(func() { // ends when its queue is closed
			for m := range in {
				wanted.Add(count(m.Data, table, &arrived))
			}
		})
	}
	router, err := nats.Connect(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	events := make([][]byte, len(names))
	for i, name := range names {
		events[i] = frame(name)
	}
	var expected int64
	random := rand.New(rand.NewPCG(1, 2))
	b.ResetTimer()
	before := cpu(b)
	for n := 0; n < b.N; n += batch {
		for range batch {
			channel := random.IntN(len(names))
			expected += int64(len(w[channel]))
			if err := s.publish(router, channel, events[channel]); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.flush(router); err != nil {
			b.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); expected-wanted.Load() > 8_192; {
			if time.Now().After(deadline) {
				b.Fatalf("%d of %d events arrived", wanted.Load(), expected)
			}
			_ = router.Flush()
		}
	}
	for deadline := time.Now().Add(20 * time.Second); wanted.Load() < expected; {
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d events arrived", wanted.Load(), expected)
		}
		_ = router.Flush()
	}
	published := float64((b.N + batch - 1) / batch * batch)
	b.ReportMetric(float64(cpu(b)-before)/1e3/published, "cpu-us/event")
	b.ReportMetric(float64(arrived.Load())/float64(expected), "arrivals/wanted")
	b.ReportMetric(0, "ns/op")
	b.StopTimer()
	router.Close()
	for i, conn := range conns {
		conn.Close()
		close(queues[i])
	}
	readers.Wait()
}

// frame is an event as it travels: lengths of name and data, then both.
func frame(name string) []byte {
	f := binary.LittleEndian.AppendUint16(nil, uint16(len(name)))
	f = binary.LittleEndian.AppendUint16(f, shapeBytes)
	f = append(f, name...)
	return append(f, make([]byte, shapeBytes)...)
}

// count looks up every event of a message, and tells how many are wanted here.
func count(message []byte, table map[string]int, arrived *atomic.Int64) (wanted int64) {
	var all int64
	for len(message) > 0 {
		name, data := int(binary.LittleEndian.Uint16(message)), int(binary.LittleEndian.Uint16(message[2:]))
		all++
		if _, ok := table[string(message[4:4+name])]; ok {
			wanted++
		}
		message = message[4+name+data:]
	}
	arrived.Add(all)
	return wanted
}

// BenchmarkInterest is what a storm costs: an edge that gets interest in 10,000
// channels, until the server has all of it.
func BenchmarkInterest(b *testing.B) {
	table := make(map[string]int)
	var names []string
	for i := range shapeChannels {
		names = append(names, fmt.Sprintf("room:%d", i))
		table[names[i]] = i
	}
	w := make(wants, shapeChannels)
	for _, s := range []shape{perChannel(names), perShard(names), perEdge(w)} {
		b.Run(s.name, func(b *testing.B) {
			server, err := natsserver.Start(b.Context(), 0)
			if err != nil {
				b.Fatal(err)
			}
			defer server.Close()
			var took int64
			for b.Loop() {
				conn, err := nats.Connect(server.URL())
				if err != nil {
					b.Fatal(err)
				}
				before := cpu(b)
				if err := s.listen(conn, 0, table, make(chan *nats.Msg, 1)); err != nil {
					b.Fatal(err)
				}
				if err := conn.Flush(); err != nil {
					b.Fatal(err)
				}
				took += cpu(b) - before
				conn.Close()
			}
			b.ReportMetric(float64(took)/1e6/float64(b.N), "cpu-ms/storm")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cpu is the CPU time of this process so far, in nanoseconds.
func cpu(b *testing.B) int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
