package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// What an older version stored is read, continued and trimmed by this one.
func TestDataOfTheFirstSchemaStays(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cfg := Default()
	cfg.DSN = pgtest.Shared(t).NewDatabase(t)
	if err := migrateTo(ctx, cfg, 1); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `
INSERT INTO history_channels (channel, head) VALUES ('chat:a', 3), ('chat:b', 0);
INSERT INTO history_events SELECT c.id, c.epoch, n, 1000 * n, false, '', NULL, 'x' FROM history_channels c, generate_series(1, 3) n WHERE c.channel = 'chat:a';
INSERT INTO history_keys SELECT id, epoch, 'b', 'k', 2, 2000 FROM history_channels WHERE channel = 'chat:a'`)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key := history.Key{Scope: "b", Key: "k"}
	heads, err := s.Heads(ctx, []history.HeadQuery{{Channel: "chat:a", Keys: []history.Key{key}}})
	if err != nil || heads[0].Offset != 3 || heads[0].Repeats[key] != 2 {
		t.Fatalf("head %+v, %v", heads, err)
	}
	if n, err := s.Trim(ctx, []history.Retention{{Namespace: "chat", Size: 2}}, 0, 100); n != 1 || err != nil {
		t.Fatalf("%d went, %v; want 1", n, err)
	}
	outcomes, err := s.Append(ctx, []history.Run{{Channel: "chat:a", Epoch: heads[0].Epoch, Head: 3, Events: []history.Event{{Offset: 4}}}})
	if err != nil || outcomes[0] != history.Stored {
		t.Fatalf("append: %v, %v", outcomes, err)
	}
	pages, err := s.Read(ctx, []history.Range{{Channel: "chat:a", Limit: 10}})
	if err != nil || pages[0].First != 2 || pages[0].Head != 4 || len(pages[0].Events) != 3 {
		t.Fatalf("page %+v, %v", pages, err)
	}
}

// Rows that were idle before the version that lets them go are found, though the rules
// have not changed: by the walk that it makes once.
func TestRowsOfOlderVersionsAreForgotten(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cfg := Default()
	cfg.DSN = pgtest.Shared(t).NewDatabase(t)
	now := time.Now()
	cfg.Now = func() time.Time { return now }
	if err := migrateTo(ctx, cfg, 3); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `
INSERT INTO history_rules (namespace, size, ttl_ms) VALUES ('chat', 2, 0);
INSERT INTO history_channels (channel, head, look_at) VALUES ('chat:emptied', 3, 3), ('chat:never', 0, 0), ('chat:full', 2, 1 << 30), ('other:a', 0, 0);
INSERT INTO history_events SELECT c.id, c.epoch, n, 1000 * n, false, '', NULL, 'x' FROM history_channels c, generate_series(1, 2) n WHERE c.channel = 'chat:full'`)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, round := range []struct {
		idle time.Duration
		want int
	}{{0, 0}, {23 * time.Hour, 0}, {2 * time.Hour, 2}, {48 * time.Hour, 0}} {
		now = now.Add(round.idle)
		if n, err := s.Trim(ctx, []history.Retention{{Namespace: "chat", Size: 2}}, 0, 100); n != 0 || err != nil {
			t.Fatalf("%d events went, %v", n, err)
		}
		if n, err := s.Forget(ctx, 24*time.Hour, 100); n != round.want || err != nil {
			t.Fatalf("%d rows went, %v; want %d", n, err, round.want)
		}
	}
	// a namespace that is not configured is left alone
	pages, err := s.Read(ctx, []history.Range{{Channel: "chat:full", Limit: 5}, {Channel: "other:a", Limit: 5}})
	if err != nil || len(pages[0].Events) != 2 || !pages[1].Exists {
		t.Fatalf("left: %+v, %v", pages, err)
	}
}

// A migration that cannot have its lock at once lets appends go before it, and
// tries again.
func TestMigrationStallsNobody(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cfg := Default()
	cfg.DSN = pgtest.Shared(t).NewDatabase(t)
	if err := migrateTo(ctx, cfg, 1); err != nil {
		t.Fatal(err)
	}
	busy, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close(ctx)
	if _, err := busy.Exec(ctx, `BEGIN; SELECT count(*) FROM history_channels`); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	// Owns nothing; ends when the store is open or ctx ends; waited for below.
	go func() {
		s, err := Open(ctx, cfg)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	appending, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer appending.Close(ctx)
	for began := time.Now(); time.Since(began) < 2*migrateLockTimeout; {
		if _, err := appending.Exec(ctx, `SET statement_timeout = '20s'; INSERT INTO history_channels (channel) VALUES ('chat:a') ON CONFLICT DO NOTHING`); err != nil {
			t.Fatalf("an append behind the waiting migration: %v", err)
		}
	}
	select {
	case err := <-opened:
		t.Fatalf("the migration did not wait: %v", err)
	default:
	}
	if _, err := busy.Exec(ctx, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
}

// The tables are told how to be vacuumed, once: what an operator sets stays.
func TestTablesAreTuned(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cfg := Default()
	cfg.DSN = pgtest.Shared(t).NewDatabase(t)
	conn, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	tuned := func(like string) (n int) {
		t.Helper()
		if err := migrate(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_class WHERE relname LIKE 'history\_%' AND reloptions::text LIKE $1`, like).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := tuned("%scale_factor=0.05%vacuum_truncate=off%"); n != 4 {
		t.Errorf("%d tables are tuned, want 4", n)
	}
	if _, err := conn.Exec(ctx, "ALTER TABLE history_events SET (autovacuum_vacuum_scale_factor = 0.2)"); err != nil {
		t.Fatal(err)
	}
	if n := tuned("%scale_factor=0.2%"); n != 1 {
		t.Errorf("what an operator had set is gone")
	}
}
