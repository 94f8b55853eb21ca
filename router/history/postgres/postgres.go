// Package postgres keeps history in PostgreSQL 13 or newer.
//
// The router calls it as any history.Store; it calls pgx. Open migrates the
// schema and makes two pools; Close ends them. pgx keeps one health check
// goroutine a pool, which Close ends.
//
// Statements: one per Append, one per Heads (two more if rows are missing), one
// per Read and direction. Each is its own transaction. Plain SQL of the plain
// protocol: no extension, no LISTEN, no advisory lock but for migrations, so
// that poolers work and databases that are compatible enough (router/history/DESIGN.md).
//
// Invariants: the statement that inserts a run is the one that compares and
// moves its channel's row; correctness depends on no isolation level. Locks are
// taken in the order of the runs, unsorted: a deadlock of two owners that
// believe in the same channels is a lost race, as is a serialization failure.
//
// Limits: two pools, so that readers in a storm never keep a writer waiting. A
// cancelled read is cancelled in the server and keeps its connection; a
// cancelled write closes its connection, its outcome is not known.
//
// Retention deletes in batches of rows, driven by a list of the channels that may
// have something to lose (looks.go). No statement waits for another's lock while
// it holds a channel's, none takes a lock on a table, and the space is used again.
//
// Left out on purpose: partitions (router/history/DESIGN.md says why).
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/internal/gate"
)

// cancelGrace is how long a read whose context has ended waits for the server
// to say that it stopped, before its connection is cut.
const cancelGrace = 250 * time.Millisecond

// Store is a history.Store in PostgreSQL.
type Store struct {
	// Immutable after Open; the pools are safe for concurrent use.
	cfg     Config
	writing *pgxpool.Pool // Append, Heads, Trim, Forget, Keep
	reading *pgxpool.Pool // Read

	gate gate.Gate
}

var _ history.Store = (*Store)(nil)

// Open connects, migrates if asked to, and fails if the database is not there:
// whoever wants to wait calls it again. The context bounds Open alone.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("postgres history: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Migrate {
		if err := migrate(ctx, cfg); err != nil {
			return nil, fmt.Errorf("migrate postgres history: %w", err)
		}
	}
	writing, err := newPool(ctx, cfg, cfg.WriteConns, nil)
	if err != nil {
		return nil, fmt.Errorf("open postgres history: %w", err)
	}
	reading, err := newPool(ctx, cfg, cfg.ReadConns, cancelInServer)
	if err != nil {
		writing.Close()
		return nil, fmt.Errorf("open postgres history: %w", err)
	}
	return &Store{cfg: cfg, writing: writing, reading: reading}, nil
}

// newPool proves by a ping that the database is there and lets us in.
func newPool(ctx context.Context, cfg Config, conns int, watch func(*pgconn.PgConn) ctxwatch.Handler) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, err
	}
	pc.MaxConns = int32(conns)
	pc.MinConns = 0 // also against a pool_min_conns in the DSN above MaxConns
	pc.ConnConfig.ConnectTimeout = cfg.ConnectTimeout
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		useColumnCodecs(conn.TypeMap())
		if cfg.StatementTimeout == 0 {
			return nil
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", cfg.StatementTimeout.Milliseconds()))
		return err
	}
	if watch != nil {
		pc.ConnConfig.BuildContextWatcherHandler = watch
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func cancelInServer(conn *pgconn.PgConn) ctxwatch.Handler {
	return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
}

// Close implements history.Store.
func (s *Store) Close() error {
	if s.gate.Close() {
		s.writing.Close()
		s.reading.Close()
	}
	return nil
}

// enter begins a call; s.gate.Leave ends it.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.gate.Enter() {
		return history.ErrClosed
	}
	return nil
}
