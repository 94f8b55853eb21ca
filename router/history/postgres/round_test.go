package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// BenchmarkRound is what a round of retention costs with 20,000 channels (-long:
// a million) of which few have something to lose; "all" reads the oldest event of
// every channel, as a store without a list must.
func BenchmarkRound(b *testing.B) {
	channels := 20_000
	if *long {
		channels = 1_000_000
	}
	server := pgtest.Start(b)
	ctx := context.Background()
	s, err := openAt(server.DSN("postgres"))()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		fmt.Sprintf("INSERT INTO history_channels (channel, head) SELECT 'chat:' || i, 20 FROM generate_series(1, %d) i", channels),
		fmt.Sprintf(`INSERT INTO history_events SELECT id, epoch, n, %d, false, '', NULL, 'x' FROM history_channels, generate_series(19, 20) n`, time.Now().UnixMilli()),
		"VACUUM ANALYZE",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			b.Fatal(err)
		}
	}
	rules := []history.Retention{{Namespace: "chat", Size: 2, TTL: time.Hour}}
	round := func(b *testing.B, want int) {
		n, err := s.Trim(ctx, rules, time.Hour, 1_000_000)
		if err != nil || n != want {
			b.Fatalf("%d went, %v, want %d", n, err, want)
		}
	}
	b.Run("new rule", func(b *testing.B) {
		spent := server.CPU()
		for b.Loop() {
			rules[0].TTL += time.Minute
			round(b, 0)
		}
		b.ReportMetric(float64((server.CPU()-spent).Milliseconds())/float64(b.N), "ms-server-CPU/op")
	})
	b.Run("all", func(b *testing.B) {
		spent := server.CPU()
		for b.Loop() {
			if err := readOldest(ctx, conn); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((server.CPU()-spent).Milliseconds())/float64(b.N), "ms-server-CPU/op")
	})
	for _, moved := range []int{0, 1_000} {
		b.Run(fmt.Sprintf("moved=%d", moved), func(b *testing.B) {
			spent := time.Duration(0)
			for b.Loop() {
				b.StopTimer()
				f := &fixture{t: b, ctx: ctx, store: s}
				f.fill(1, names("chat:%d", moved+1)[1:]...)
				before := server.CPU()
				b.StartTimer()
				round(b, moved)
				spent += server.CPU() - before
			}
			b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "ms-server-CPU/op")
		})
	}
}

// readOldest walks over all channels.
func readOldest(ctx context.Context, conn *pgx.Conn) error {
	for after := ""; ; {
		rows, err := conn.Query(ctx, `
SELECT c.channel, coalesce(f.time_ms, 0)
FROM (SELECT channel, id, epoch FROM history_channels WHERE channel > $1 ORDER BY channel LIMIT 1000) c
LEFT JOIN LATERAL (
	SELECT time_ms FROM history_events WHERE channel_id = c.id AND epoch = c.epoch ORDER BY "offset" LIMIT 1
) f ON true
ORDER BY c.channel`, after)
		if err != nil {
			return err
		}
		n := 0
		for ; rows.Next(); n++ {
			var timeMS int64
			if err := rows.Scan(&after, &timeMS); err != nil {
				return err
			}
		}
		if rows.Err() != nil || n < 1000 {
			return rows.Err()
		}
	}
}

// BenchmarkForget is what letting rows go costs beside 20,000 idle channels (-long: a
// million) that are not due, and for each 10,000 that are.
func BenchmarkForget(b *testing.B) {
	channels, due := 20_000, 10_000
	if *long {
		channels = 1_000_000
	}
	server := pgtest.Start(b)
	ctx := context.Background()
	s, err := openAt(server.DSN("postgres"))()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	idle := func(name string, n int, since time.Time) {
		for _, sql := range []string{
			fmt.Sprintf("INSERT INTO history_channels (channel) SELECT '%s:' || i FROM generate_series(1, %d) i", name, n),
			fmt.Sprintf("INSERT INTO history_looks SELECT channel, %d, %d FROM history_channels WHERE channel LIKE '%s:%%'", int64(1)<<61, since.UnixMilli(), name),
			"ANALYZE",
		} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				b.Fatal(err)
			}
		}
	}
	idle("young", channels, time.Now())
	for name, want := range map[string]int{"nothing due": 0, fmt.Sprint(due, " due"): due} {
		b.Run(name, func(b *testing.B) {
			spent := time.Duration(0)
			for b.Loop() {
				b.StopTimer()
				if want > 0 {
					idle("old", want, time.Now().Add(-48*time.Hour))
				}
				before := server.CPU()
				b.StartTimer()
				n, err := s.Forget(ctx, 24*time.Hour, 1_000_000)
				if err != nil || n != want {
					b.Fatalf("%d went, %v, want %d", n, err, want)
				}
				spent += server.CPU() - before
			}
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "ms-server-CPU/op")
		})
	}
	kept := names("young:%d", 1001)[1:]
	b.Run("1000 kept", func(b *testing.B) {
		spent := server.CPU()
		for b.Loop() {
			if err := s.Keep(ctx, kept); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((server.CPU()-spent).Microseconds())/1000/float64(b.N), "ms-server-CPU/op")
	})
}
