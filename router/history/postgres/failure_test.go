package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/postgres"
)

const testTimeout = 30 * time.Second

// fixture is a store over an empty database, and connections beside it.
type fixture struct {
	t     testing.TB
	ctx   context.Context
	store history.Store
	conn  *pgx.Conn // for transactions
	watch *pgx.Conn // outside of them, since pg_stat_activity stands still within one
}

func newFixture(t *testing.T) *fixture {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	dsn := pgtest.Shared(t).NewDatabase(t)
	s, err := openAt(dsn)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := &fixture{t: t, ctx: ctx, store: s}
	for _, conn := range []**pgx.Conn{&f.conn, &f.watch} {
		if *conn, err = pgx.Connect(ctx, dsn); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*conn).Close(context.Background()) })
	}
	return f
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.conn.Exec(f.ctx, sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// waiting polls until n statements of the store are, or wait, in the server.
func (f *fixture) waiting(n int, like string) {
	f.t.Helper()
	for {
		var active int
		err := f.watch.QueryRow(f.ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE $1`, like).Scan(&active)
		if err != nil {
			f.t.Fatalf("waiting for %d statements like %s: %v", n, like, err)
		}
		if active == n {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

// run is one event behind the head of a channel.
func (f *fixture) run(channel string) history.Run {
	f.t.Helper()
	heads, err := f.store.Heads(f.ctx, []history.HeadQuery{{Channel: channel}})
	if err != nil {
		f.t.Fatal(err)
	}
	h := heads[0]
	return history.Run{Channel: channel, Epoch: h.Epoch, Head: h.Offset, Events: []history.Event{
		{Offset: h.Offset + 1, Data: []byte("1")},
	}}
}

func TestOffsetsAreExactUpToTheLast(t *testing.T) {
	f := newFixture(t)
	historytest.LastOffsets(t, f.store, func(channel string, head uint64) {
		f.exec("UPDATE history_channels SET head = $2 WHERE channel = $1", channel, int64(head))
	})
}

// What PostgreSQL cannot hold is refused, and the rest of the batch goes in once
// the caller has found the bad event.
func TestContentThatPostgresRefusesIsToldApart(t *testing.T) {
	f := newFixture(t)
	for name, spoil := range map[string]func(*history.Event){
		"NUL in a user's name": func(e *history.Event) { e.From = "a\x00b" },
		"invalid UTF-8":        func(e *history.Event) { e.From = "\xff" },
		"a key past the index": func(e *history.Event) { e.Scope, e.Key = "b", randomText(1<<16) },
	} {
		good, bad := f.run("chat:good"), f.run("chat:bad")
		spoil(&bad.Events[0])
		_, err := f.store.Append(f.ctx, []history.Run{good, bad})
		var refused *history.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v, want a RefusedError", name, err)
			continue
		}
		outcomes, err := f.store.Append(f.ctx, []history.Run{good})
		if err != nil || outcomes[0] != history.Stored {
			t.Errorf("%s: the good run alone: %v, %v", name, outcomes, err)
		}
	}
}

// randomText does not compress below what an index entry may have.
func randomText(n int) string {
	var b strings.Builder
	for x := uint32(1); b.Len() < n; {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b.WriteByte('!' + byte(x>>8)%90)
	}
	return b.String()
}

// A deadline ends a read while the table is locked, and the statement ends in
// the server too; the pool serves again at once.
func TestDeadlineEndsTheStatementInTheServer(t *testing.T) {
	f := newFixture(t)
	run := f.run("chat:a")
	f.exec("BEGIN")
	f.exec("LOCK TABLE history_events IN ACCESS EXCLUSIVE MODE")
	calls := map[string]func(context.Context) error{
		"%range%": func(ctx context.Context) error {
			_, err := f.store.Read(ctx, []history.Range{{Channel: "chat:a", Limit: 1}})
			return err
		},
		"%won%": func(ctx context.Context) error {
			_, err := f.store.Append(ctx, []history.Run{run})
			return err
		},
	}
	for like, call := range calls {
		ctx, cancel := context.WithCancel(f.ctx)
		ended := make(chan error, 1)
		// Owns nothing; ends with the call, which the cancellation ends; waited for below.
		go func() { ended <- call(ctx) }()
		f.waiting(1, like)
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", like, err)
			}
		case <-f.ctx.Done():
			t.Fatalf("%s: the call outlives its context", like)
		}
		f.waiting(0, like)
	}
	f.exec("ROLLBACK")
	if outcomes, err := f.store.Append(f.ctx, []history.Run{run}); err != nil || outcomes[0] != history.Stored {
		t.Fatalf("append afterwards: %v, %v", outcomes, err)
	}
}

// Where no cancellation comes through, the server ends a statement by itself.
func TestServerEndsAStatementByItself(t *testing.T) {
	f := newFixture(t)
	run := f.run("chat:a")
	cfg := postgres.Default()
	cfg.DSN, cfg.StatementTimeout = f.conn.Config().ConnString(), 100*time.Millisecond
	s, err := postgres.Open(f.ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f.exec("BEGIN")
	f.exec("LOCK TABLE history_events IN ACCESS EXCLUSIVE MODE")
	_, err = s.Append(f.ctx, []history.Run{run})
	var refused *history.RefusedError
	if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "57014") {
		t.Errorf("append: %v, want a cancelled statement", err)
	}
	if _, err := s.Read(f.ctx, []history.Range{{Channel: "chat:a", Limit: 1}}); err == nil || !strings.Contains(err.Error(), "57014") {
		t.Errorf("read: %v, want a cancelled statement", err)
	}
	f.exec("ROLLBACK")
	if outcomes, err := s.Append(f.ctx, []history.Run{run}); err != nil || outcomes[0] != history.Stored {
		t.Fatalf("append afterwards: %v, %v", outcomes, err)
	}
}

// However many call at once, each pool keeps to its size, and readers that wait
// keep no writer waiting.
func TestPoolsKeepToTheirSizes(t *testing.T) {
	f := newFixture(t)
	run := f.run("chat:a")
	f.exec("BEGIN")
	f.exec("LOCK TABLE history_events IN ACCESS EXCLUSIVE MODE")
	ctx, cancel := context.WithCancel(f.ctx)
	var waiting sync.WaitGroup
	for range 20 {
		// Own nothing; end when ctx does; waited for below.
		waiting.Go(func() { _, _ = f.store.Read(ctx, []history.Range{{Channel: "chat:a", Limit: 1}}) })
	}
	f.waiting(postgres.Default().ReadConns, "%range%")
	if heads, err := f.store.Heads(f.ctx, []history.HeadQuery{{Channel: "chat:a"}}); err != nil || heads[0].Epoch != run.Epoch {
		t.Errorf("a head behind readers that wait: %+v, %v", heads, err)
	}
	for range 20 {
		// Own nothing; end when ctx does; waited for below.
		waiting.Go(func() { _, _ = f.store.Append(ctx, []history.Run{run}) })
	}
	f.waiting(postgres.Default().WriteConns, "%won%")
	f.waiting(postgres.Default().ReadConns, "%range%")
	cancel()
	waiting.Wait()
	f.waiting(0, "%range%")
	f.waiting(0, "%won%")
	f.exec("ROLLBACK")
}

// Two owners lock the same rows in opposite orders: the loser of the deadlock
// hears no error, and what it is told is true.
func TestDeadlockIsALostRace(t *testing.T) {
	f := newFixture(t)
	a, b := f.run("chat:a"), f.run("chat:b")
	f.exec("BEGIN")
	f.exec("UPDATE history_channels SET head = 7 WHERE channel = 'chat:a'")
	type answer struct {
		outcomes []history.Outcome
		err      error
	}
	answered := make(chan answer, 1)
	// Owns nothing; ends when the transaction beside it does; waited for below.
	go func() {
		outcomes, err := f.store.Append(f.ctx, []history.Run{b, a}) // holds b, waits for a
		answered <- answer{outcomes, err}
	}()
	f.waiting(1, "%won%")
	_, err := f.conn.Exec(f.ctx, "UPDATE history_channels SET head = 7 WHERE channel = 'chat:b'")
	if err == nil {
		f.exec("COMMIT") // the store was the victim, and tried again
	} else {
		f.exec("ROLLBACK")
	}
	got := <-answered
	if got.err != nil {
		t.Fatalf("append: %v", got.err)
	}
	want := history.Lost
	if err != nil {
		want = history.Stored
	}
	for i, outcome := range got.outcomes {
		if outcome != want {
			t.Errorf("run %d: %v, want %v (the other side: %v)", i, outcome, want, err)
		}
	}
	pages, err := f.store.Read(f.ctx, []history.Range{{Channel: "chat:a", Limit: 1}, {Channel: "chat:b", Limit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if (len(p.Events) == 1) != (want == history.Stored) {
			t.Errorf("%s: %d events, told %v", p.Channel, len(p.Events), want)
		}
	}
}

func TestOpenWithoutADatabaseIsAnError(t *testing.T) {
	server := pgtest.Shared(t)
	for _, dsn := range []string{server.DSN("no_such_database"), "postgres://nobody:wrong@127.0.0.1:1/x?sslmode=disable"} {
		s, err := openAt(dsn)()
		if err == nil {
			_ = s.Close()
			t.Fatalf("opened %s", dsn)
		}
		if strings.Contains(err.Error(), "wrong") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
}

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	if err := postgres.Default().Validate(); err == nil || !strings.HasPrefix(err.Error(), "dsn: ") {
		t.Errorf("default without a DSN: %v", err)
	}
	cfg := postgres.Config{DSN: "postgres://u:secret@h:port/", WriteConns: 0, ReadConns: 65}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"dsn: ", "write_conns: 0", "read_conns: 65", "connect_timeout: 0s", "migrate_timeout: 0s"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not tell %q", err, field)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is in the error: %v", err)
	}
}

// A primary that became a standby behind the same address refuses writes on its
// old connections: they go, and new ones find the primary.
func TestReadOnlyServerIsLeft(t *testing.T) {
	f := newFixture(t)
	run := f.run("chat:a")
	f.exec("ALTER DATABASE " + pgx.Identifier{f.conn.Config().Database}.Sanitize() + " SET default_transaction_read_only = on")
	f.dropSessions()
	for deadline := time.Now().Add(testTimeout / 2); ; { // the first try meets the connection that was cut
		_, err := f.store.Append(f.ctx, []history.Run{run})
		var refused *history.RefusedError
		if err == nil || errors.As(err, &refused) {
			t.Fatalf("append to a read-only server: %v", err)
		}
		if strings.Contains(err.Error(), "25006") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("append never hears that the server is read-only: %v", err)
		}
	}
	f.exec("ALTER DATABASE " + pgx.Identifier{f.conn.Config().Database}.Sanitize() + " RESET default_transaction_read_only")
	outcomes, err := f.store.Append(f.ctx, []history.Run{run})
	if err != nil || outcomes[0] != history.Stored {
		t.Fatalf("append afterwards: %v, %v", outcomes, err)
	}
}

// dropSessions ends the connections of the store.
func (f *fixture) dropSessions() {
	f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid NOT IN ($1, $2)`, f.conn.PgConn().PID(), f.watch.PgConn().PID())
}
