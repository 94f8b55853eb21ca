package historytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
)

// benchChannels and the 200 B of each event are those of the measured floors.
const (
	benchChannels = 10_000
	benchMissed   = 5 // events behind which a returning client is
)

// Bench measures appends and reads of a store on 10,000 channels, a random one
// for each event, in several sizes of batches. serverCPU is the time spent by
// the database's processes, nil if it runs in this one.
func Bench(b *testing.B, s history.Store, serverCPU func() time.Duration) {
	ctx := context.Background()
	heads := benchHeads(b, ctx, s)
	for _, size := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("Append/batch=%d", size), func(b *testing.B) {
			measure(b, size, "row", serverCPU, func() { benchAppend(b, ctx, s, heads, size) })
		})
	}
	for range benchMissed { // whatever was chosen above, each channel has enough
		for at := 0; at < benchChannels; at += 1000 {
			benchStore(b, ctx, s, heads[at:at+1000])
		}
	}
	for _, size := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("Read/batch=%d", size), func(b *testing.B) {
			measure(b, size, "lookup", serverCPU, func() { benchRead(b, ctx, s, heads, size) })
		})
	}
	b.Run("Heads/batch=100", func(b *testing.B) {
		measure(b, 100, "lookup", serverCPU, func() { benchLoad(b, ctx, s, heads, 100) })
	})
}

// measure reports what one row or lookup costs, of size a call.
func measure(b *testing.B, size int, unit string, serverCPU func() time.Duration, call func()) {
	if serverCPU == nil {
		serverCPU = func() time.Duration { return 0 }
	}
	own, server := ownCPU(), serverCPU()
	for b.Loop() {
		call()
	}
	n := float64(b.N * size)
	b.ReportMetric(n/b.Elapsed().Seconds(), unit+"s/s")
	b.ReportMetric(float64((ownCPU()-own).Microseconds())/n, "us-own-CPU/"+unit)
	if d := serverCPU() - server; d > 0 {
		b.ReportMetric(float64(d.Microseconds())/n, "us-server-CPU/"+unit)
	}
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchHeads(b *testing.B, ctx context.Context, s history.Store) []history.Head {
	var heads []history.Head
	for at := 0; at < benchChannels; at += 1000 {
		var queries []history.HeadQuery
		for i := range 1000 {
			queries = append(queries, history.HeadQuery{Channel: fmt.Sprintf("bench:%d", at+i)})
		}
		some, err := s.Heads(ctx, queries)
		if err != nil {
			b.Fatal(err)
		}
		heads = append(heads, some...)
	}
	return heads
}

func benchAppend(b *testing.B, ctx context.Context, s history.Store, heads []history.Head, size int) {
	// the first places are filled with distinct channels at random
	for i := range size {
		j := i + rand.IntN(len(heads)-i)
		heads[i], heads[j] = heads[j], heads[i]
	}
	benchStore(b, ctx, s, heads[:size])
}

func benchStore(b *testing.B, ctx context.Context, s history.Store, heads []history.Head) {
	runs := make([]history.Run, len(heads))
	data := make([]byte, 200)
	for i, h := range heads {
		runs[i] = history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{
			{Offset: h.Offset + 1, TimeMS: nowMS(), Data: data, Binary: true},
		}}
	}
	outcomes, err := s.Append(ctx, runs)
	if err != nil {
		b.Fatal(err)
	}
	for i := range outcomes {
		if outcomes[i] != history.Stored {
			b.Fatalf("run %d: %v", i, outcomes[i])
		}
		heads[i].Offset++
	}
}

func benchRead(b *testing.B, ctx context.Context, s history.Store, heads []history.Head, size int) {
	ranges := make([]history.Range, size)
	for i := range ranges {
		h := heads[rand.IntN(len(heads))]
		ranges[i] = history.Range{Channel: h.Channel, After: h.Offset - benchMissed, Limit: 100, MaxBytes: 64 << 10}
	}
	pages, err := s.Read(ctx, ranges)
	if err != nil {
		b.Fatal(err)
	}
	for i := range pages {
		if len(pages[i].Events) != benchMissed {
			b.Fatalf("%+v: %d events of %d..%d", ranges[i], len(pages[i].Events), pages[i].First, pages[i].Head)
		}
	}
}

func benchLoad(b *testing.B, ctx context.Context, s history.Store, heads []history.Head, size int) {
	queries := make([]history.HeadQuery, size)
	for i := range queries {
		queries[i] = history.HeadQuery{Channel: heads[rand.IntN(len(heads))].Channel, Keys: []history.Key{{Scope: "b", Key: "none"}}}
	}
	if _, err := s.Heads(ctx, queries); err != nil {
		b.Fatal(err)
	}
}
