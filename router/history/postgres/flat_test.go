package postgres_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/postgres"
)

var long = flag.Bool("long", false, "retention over 25 periods with the server's own vacuum, minutes instead of seconds")

// life is a store that lives fast: its clock goes a step at a time.
type life struct {
	channels int // half of them keep events by age, half by size
	events   int // in a period, of 200 B
	periods  int
	vacuum   bool // by the test after each period; else the server does it by itself

	store history.Store
	conn  *pgx.Conn
	nowMS atomic.Int64
	heads []history.Head
	slow  time.Duration // the longest append
}

const (
	period = time.Hour // that events live, on the clock of the store
	steps  = 8         // of a period
	kept   = 20        // events of a channel that keeps by size
)

// The room of a store depends on what it keeps, not on how long it has lived:
// over many retention periods the disk stays flat, while no statement but a
// vacuum takes more than row locks.
func TestRetentionKeepsTheDiskFlat(t *testing.T) {
	l := &life{channels: 400, events: 6_000, periods: 7, vacuum: true}
	if *long {
		l = &life{channels: 5_000, events: 50_000, periods: 25}
	}
	server := pgtest.Start(t, pgtest.NoSync, "autovacuum_naptime=1s", "deadlock_timeout=10s")
	cfg := postgres.Default()
	cfg.DSN = server.DSN("postgres")
	l.nowMS.Store(time.Now().UnixMilli())
	cfg.Now = func() time.Time { return time.UnixMilli(l.nowMS.Load()) }
	ctx := context.Background()
	s, err := postgres.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l.store = s
	if l.conn, err = pgx.Connect(ctx, cfg.DSN); err != nil {
		t.Fatal(err)
	}
	defer l.conn.Close(ctx)
	if err := l.create(ctx); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for n := range l.periods {
		if err := l.live(ctx); err != nil {
			t.Fatal(err)
		}
		size, live := l.size(t)
		sizes = append(sizes, size)
		t.Logf("period %d: %.1f MB, %d events, %.0f B each, slowest append %v", n, float64(size)/1e6, live, float64(size)/float64(live), l.slow.Round(time.Millisecond))
		l.slow = 0
	}
	early, late := slices.Max(sizes[2:4]), slices.Max(sizes[l.periods-2:])
	if float64(late) > 1.25*float64(early) {
		t.Errorf("%d bytes in the end, %d after four periods: %v", late, early, sizes)
	}
}

func (l *life) create(ctx context.Context) error {
	for at := 0; at < l.channels; at += 1_000 {
		queries := make([]history.HeadQuery, min(1_000, l.channels-at))
		for i := range queries {
			queries[i].Channel = fmt.Sprintf("%s:%d", []string{"age", "size"}[i%2], at+i)
		}
		heads, err := l.store.Heads(ctx, queries)
		if err != nil {
			return err
		}
		l.heads = append(l.heads, heads...)
	}
	return nil
}

// live is a period: events come while others go.
func (l *life) live(ctx context.Context) error {
	rules := []history.Retention{{Namespace: "age", TTL: period}, {Namespace: "size", Size: kept}}
	for range steps {
		l.nowMS.Add(period.Milliseconds() / steps)
		var group errgroup.Group
		// Owns heads; ends with the step's events; waited for below.
		group.Go(func() error { return l.publish(ctx, l.events/steps) })
		// Owns nothing; ends when nothing is due; waited for below.
		group.Go(func() error {
			for {
				n, err := l.store.Trim(ctx, rules, period, 1_000)
				if err != nil || n < 1_000 {
					return err
				}
			}
		})
		if err := group.Wait(); err != nil {
			return err
		}
	}
	if l.vacuum {
		_, err := l.conn.Exec(ctx, "VACUUM history_events, history_keys, history_looks, history_channels")
		return err
	}
	return nil
}

// publish stores batches of 100 events, each with a key, on channels by chance.
func (l *life) publish(ctx context.Context, events int) error {
	data := []byte(strings.Repeat("0123456789abcdefghij", 10))
	for ; events > 0; events -= 100 {
		runs := make([]history.Run, 0, 100)
		taken := make(map[int]bool)
		for len(runs) < 100 {
			n := rand.IntN(len(l.heads))
			if taken[n] {
				continue
			}
			taken[n] = true
			h := &l.heads[n]
			runs = append(runs, history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{
				{Offset: h.Offset + 1, TimeMS: l.nowMS.Load(), Data: data, Scope: "b", Key: fmt.Sprintf("key-%d", h.Offset)},
			}})
			h.Offset++
		}
		began := time.Now()
		outcomes, err := l.store.Append(ctx, runs)
		l.slow = max(l.slow, time.Since(began))
		if err == nil && slices.Contains(outcomes, history.Lost) {
			err = fmt.Errorf("a run was lost: retention and appends hinder each other")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// size is what the tables take with their indexes, and how many events there are.
func (l *life) size(t *testing.T) (bytes, events int) {
	t.Helper()
	err := l.conn.QueryRow(context.Background(), `
SELECT (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relkind = 'r' AND c.relname LIKE 'history\_%'),
	(SELECT count(*) FROM history_events)`).Scan(&bytes, &events)
	if err != nil {
		t.Fatal(err)
	}
	return bytes, events
}

// Channels with ever new names, each used once, leave nothing behind: neither rows of
// any table nor room on the disk.
func TestNewChannelsForEverLeaveTheDiskFlat(t *testing.T) {
	periods, each := 8, 2_000
	if *long {
		periods, each = 25, 50_000
	}
	server := pgtest.Start(t, pgtest.NoSync)
	ctx := context.Background()
	l := new(life)
	l.nowMS.Store(time.Now().UnixMilli())
	s, err := openThen(server.DSN("postgres"), func() time.Time { return time.UnixMilli(l.nowMS.Load()) })()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if l.conn, err = pgx.Connect(ctx, server.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	defer l.conn.Close(ctx)
	l.store = s
	var sizes []int
	for n := range periods {
		l.nowMS.Add(period.Milliseconds())
		if err := l.visit(ctx, n, each); err != nil {
			t.Fatal(err)
		}
		var rows, looks, orphans int
		err := l.conn.QueryRow(ctx, `
SELECT (SELECT count(*) FROM history_channels), (SELECT count(*) FROM history_looks),
	(SELECT count(*) FROM history_events e WHERE NOT EXISTS (SELECT FROM history_channels c WHERE c.id = e.channel_id))`).Scan(&rows, &looks, &orphans)
		if err != nil {
			t.Fatal(err)
		}
		size, events := l.size(t)
		sizes = append(sizes, size)
		t.Logf("period %d: %d channels were used, %d rows, %d looks, %d events, %.1f MB", n, (n+1)*each, rows, looks, events, float64(size)/1e6)
		if rows > 4*each || looks > rows || orphans > 0 {
			t.Fatalf("%d rows, %d looks, %d events without a row, of %d channels in a period", rows, looks, orphans, each)
		}
	}
	if early, late := slices.Max(sizes[3:5]), sizes[periods-1]; float64(late) > 1.25*float64(early) {
		t.Errorf("%d bytes in the end, %d after five periods: %v", late, early, sizes)
	}
}

// visit stores an event with a key in each of some new channels, and lets go of what is
// old.
func (l *life) visit(ctx context.Context, n, channels int) error {
	for at := 0; at < channels; at += 1_000 {
		queries := make([]history.HeadQuery, min(1_000, channels-at))
		for i := range queries {
			queries[i].Channel = fmt.Sprintf("age:%d-%d", n, at+i)
		}
		heads, err := l.store.Heads(ctx, queries)
		if err != nil {
			return err
		}
		runs := make([]history.Run, len(heads))
		for i, h := range heads {
			runs[i] = history.Run{Channel: h.Channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{
				{Offset: h.Offset + 1, TimeMS: l.nowMS.Load(), Data: []byte(`"hello"`), Scope: "b", Key: "k"},
			}}
		}
		if outcomes, err := l.store.Append(ctx, runs); err != nil || slices.Contains(outcomes, history.Lost) {
			return fmt.Errorf("append: %v, %w", outcomes, err)
		}
	}
	for _, take := range []func() (int, error){
		func() (int, error) {
			return l.store.Trim(ctx, []history.Retention{{Namespace: "age", TTL: period / 2}}, period/2, 1_000)
		},
		func() (int, error) { return l.store.Forget(ctx, period, 1_000) },
	} {
		for {
			gone, err := take()
			if err != nil {
				return err
			}
			if gone < 1_000 {
				break
			}
		}
	}
	_, err := l.conn.Exec(ctx, "VACUUM history_events, history_keys, history_looks, history_channels")
	return err
}
