package feed

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// nowhere is a bus, routers and a sink that cost nothing.
type nowhere struct{ frames int }

func (n *nowhere) Interest(string, int) error { return nil }
func (n *nowhere) Renew(string, int) error    { return nil }
func (n *nowhere) Drop(string, int)           {}
func (n *nowhere) Disruptions(int) uint64     { return 0 }
func (n *nowhere) Receive(context.Context, int, [][]byte) ([][]byte, error) {
	return nil, context.Canceled
}

func (n *nowhere) Ask(a *gatewayv1.Ask, to Answerer) {
	to.Answer(&gatewayv1.Answer{Id: a.Id, Status: gatewayv1.Status_STATUS_OK, Epoch: 1, HasHistory: true})
}
func (n *nowhere) Live(_ string, _ uint64, frames []Frame, _ bool) { n.frames += len(frames) }
func (n *nowhere) Gap(Gap)                                         { panic("gap") }
func (n *nowhere) Piece(Piece)                                     {}

func encode(channel string, epoch uint64, e *gatewayv1.BusEvent) []byte {
	return wire.AppendEvent(make([]byte, 0, len(channel)+len(e.Data)+96), channel, e)
}

// newIdle is a shard that carries n channels, all in order at offset 0.
func newIdle(n int) (*shard, *nowhere) {
	cfg := Default()
	cfg.Shards, cfg.Encode, cfg.Log = 1, encode, slog.New(slog.DiscardHandler)
	null := new(nowhere)
	s := newShard(0, &Table{cfg: cfg, sinks: []Sink{null}, metrics: newMetrics(nil)}, null, null)
	s.step.now = time.Now()
	for i := range n {
		s.inbox.post(command{kind: cmdPull, pull: Pull{Channel: fmt.Sprintf("chat:room-%07d", i), First: true, Sub: uint64(i)}})
	}
	s.commands()
	s.commands() // answers
	return s, null
}

// One event of 128 B in an envelope, from the bytes of the bus to one sink,
// encoding included.
func BenchmarkLiveEvent(b *testing.B) {
	const channels = 10_000
	s, null := newIdle(channels)
	data := fmt.Appendf(nil, `{"text":"%0117d"}`, 0)
	message := func(i int) []byte {
		m, _ := proto.Marshal(&gatewayv1.Envelope{
			Channel: fmt.Sprintf("chat:room-%07d", i%channels), Epoch: 1, Head: uint64(i/channels) + 1, Router: "router-1",
			Events: []*gatewayv1.BusEvent{{Offset: uint64(i/channels) + 1, TimeMs: 1_700_000_000_000, Data: data}},
		})
		return m
	}
	const batch = 1 << 14
	messages := make([][]byte, batch)
	b.ReportAllocs()
	for i := 0; i < b.N; i += batch {
		b.StopTimer()
		for j := range messages {
			messages[j] = message(i + j)
		}
		b.StartTimer()
		for _, m := range messages[:min(batch, b.N-i)] {
			s.message(m)
		}
		s.tell()
	}
	if null.frames != b.N {
		b.Fatalf("%d of %d events", null.frames, b.N)
	}
}

func TestQuietChannelIsSmall(t *testing.T) {
	const n = 50_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s, _ := newIdle(n)
	s.spare = nil
	s.heads.young = nil // forgotten after HeadDelay
	runtime.GC()
	runtime.ReadMemStats(&after)
	for _, f := range s.feeds {
		if f.work != nil || !f.known {
			t.Fatalf("not quiet: %+v", f)
		}
	}
	size := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.0f B a quiet channel", size)
	if size > 300 {
		t.Errorf("a quiet channel costs %.0f B", size)
	}
	runtime.KeepAlive(s)
}
