package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

func BenchmarkStore(b *testing.B) {
	server := pgtest.Start(b)
	s, err := openAt(server.DSN("postgres"))()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	historytest.Bench(b, s, server.CPU)
}

// BenchmarkCallers is group commit by several committers at once, each with
// 5,000 channels of its own, in their order.
func BenchmarkCallers(b *testing.B) {
	server := pgtest.Start(b)
	s, err := openAt(server.DSN("postgres"))()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, callers := range []int{1, 4} {
		for _, size := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("callers=%d/batch=%d", callers, size), func(b *testing.B) { benchCallers(b, s, callers, size, server.CPU) })
		}
	}
}

// BenchmarkFloor is one insert of the same rows by unnest, keyed by channel and
// offset, without a fence: what no store can be better than.
func BenchmarkFloor(b *testing.B) {
	server := pgtest.Start(b)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `CREATE TABLE floor (channel_id bigint, "offset" bigint, data bytea NOT NULL, PRIMARY KEY (channel_id, "offset"))`); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			channels, offsets, datas := make([]int64, size), make([]int64, size), make([][]byte, size)
			server0, own, at := server.CPU(), selfCPU(), 0
			for b.Loop() {
				for i := range size {
					at++
					channels[i], offsets[i], datas[i] = int64(at*7919%10_000), time.Now().UnixNano()+int64(at), make([]byte, 200)
				}
				if _, err := conn.Exec(ctx, "INSERT INTO floor SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])", channels, offsets, datas); err != nil {
					b.Fatal(err)
				}
			}
			report(b, size, selfCPU()-own, server.CPU()-server0)
		})
	}
}

func report(b *testing.B, size int, own, server time.Duration) {
	n := float64(b.N * size)
	b.ReportMetric(n/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(own.Microseconds())/n, "us-own-CPU/row")
	b.ReportMetric(float64(server.Microseconds())/n, "us-server-CPU/row")
}

func benchCallers(b *testing.B, s history.Store, callers, size int, serverCPU func() time.Duration) {
	ctx := context.Background()
	heads := make([][]history.Head, callers)
	for caller := range heads {
		for at := 0; at < 5_000; at += 1_000 {
			queries := make([]history.HeadQuery, 1_000)
			for i := range queries {
				queries[i].Channel = fmt.Sprintf("bench:%d-%d-%d-%d", callers, size, caller, at+i)
			}
			some, err := s.Heads(ctx, queries)
			if err != nil {
				b.Fatal(err)
			}
			heads[caller] = append(heads[caller], some...)
		}
	}
	for caller := range heads { // the first event of a channel costs more: retention lists it
		for at := 0; at < 5_000; at += 1_000 {
			if err := benchStore(ctx, s, heads[caller], at, 1_000); err != nil {
				b.Fatal(err)
			}
		}
	}
	server, own := serverCPU(), selfCPU()
	b.ResetTimer()
	var group errgroup.Group
	for caller := range callers {
		// Owns heads[caller]; ends after its share of the batches; waited for below.
		group.Go(func() error {
			at := 0
			for n := caller; n < b.N; n += callers {
				if err := benchStore(ctx, s, heads[caller], at, size); err != nil {
					return err
				}
				at += size
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	report(b, size, selfCPU()-own, serverCPU()-server)
}

// benchStore appends an event of 200 B to each of size channels.
func benchStore(ctx context.Context, s history.Store, heads []history.Head, at, size int) error {
	data, runs := make([]byte, 200), make([]history.Run, size)
	for i := range runs {
		h := &heads[(at+i)%len(heads)]
		runs[i] = history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{
			{Offset: h.Offset + 1, TimeMS: time.Now().UnixMilli(), Data: data, Binary: true},
		}}
		h.Offset++
	}
	outcomes, err := s.Append(ctx, runs)
	if err == nil && slices.Contains(outcomes, history.Lost) {
		err = errors.New("a run was lost")
	}
	return err
}

func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
