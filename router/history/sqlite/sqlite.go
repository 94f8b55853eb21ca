// Package sqlite keeps history in one SQLite file: for `spillway dev` and for a
// single router embedded with its data.
//
// The router calls it as any history.Store; it calls modernc.org/sqlite, which
// is Go all the way down. Open makes the file and its tables, Close ends it.
// There is one writer connection, taken in turn, and a small pool of readers
// that see the last commit (WAL). No goroutine is started here; database/sql
// keeps its connection openers, which Close ends.
//
// Layout: events are an append log by rowid with one unique index (channel id,
// epoch, offset). A table clustered by channel costs 22 us of CPU a row at any
// batch size, an append log 2 to 11. Channels are a small table of their own,
// clustered by name, whose id stands for the name in the log.
//
// Invariants: a run compares and moves its channel's row in the transaction
// that inserts its events (IMMEDIATE: no other writer, of this process or
// another, comes between). Epochs come from a counter in the same file.
//
// Left out on purpose: a context does not end a sync to disk; vacuuming (the
// pages of trimmed events are used again, the file does not shrink).
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/internal/gate"
)

// busyTimeout bounds the wait for another process that writes to the same
// file; a context ends it earlier.
const busyTimeout = 10 * time.Second

// pageBytes is the size of a page in a new file.
const pageBytes = 4096

// Store is a history.Store in one file.
type Store struct {
	// Immutable after Open.
	cfg     Config
	db      *sql.DB
	readers chan *reader // those not in use; holds all of them when idle
	writer  chan *writer // holds the one writer when it is not in use

	gate gate.Gate
}

var _ history.Store = (*Store)(nil)

// Open opens the file, makes it if it is not there, and brings its tables up to
// date. The context bounds Open alone.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sqlite history: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	db, err := sql.Open("sqlite", cfg.dsn())
	if err != nil {
		return nil, fmt.Errorf("open history %s: %w", cfg.Path, err)
	}
	s := &Store{
		cfg:     cfg,
		db:      db,
		readers: make(chan *reader, cfg.ReadConns),
		writer:  make(chan *writer, 1),
	}
	if err := s.connect(ctx); err != nil {
		return nil, fmt.Errorf("open history %s: %w", cfg.Path, errors.Join(err, db.Close()))
	}
	return s, nil
}

// connect takes all connections for good: statements are prepared on each once.
func (s *Store) connect(ctx context.Context) error {
	s.db.SetMaxOpenConns(s.cfg.ReadConns + 1)
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	if err := migrate(ctx, conn); err != nil {
		return err
	}
	w, err := newWriter(ctx, conn)
	if err != nil {
		return err
	}
	s.writer <- w
	for range s.cfg.ReadConns {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		r, err := newReader(ctx, conn)
		if err != nil {
			return err
		}
		s.readers <- r
	}
	return nil
}

func (c Config) dsn() string {
	most := int64(0) // leaves the bound as it is: none
	if c.MaxBytes > 0 {
		most = c.MaxBytes / pageBytes
	}
	pragmas := url.Values{"_pragma": {
		fmt.Sprintf("page_size(%d)", pageBytes),
		fmt.Sprintf("max_page_count(%d)", most),
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)",
		fmt.Sprintf("synchronous(%s)", c.Synchronous),
		fmt.Sprintf("cache_size(-%d)", c.CacheBytes>>10),
		"temp_store(MEMORY)",
		"journal_size_limit(67108864)", // a log that a slow reader let grow is cut back
	}}
	return "file:" + (&url.URL{Path: c.Path}).EscapedPath() + "?" + pragmas.Encode()
}

// Close implements history.Store.
func (s *Store) Close() error {
	if !s.gate.Close() {
		return nil
	}
	var errs []error
	for range s.cfg.ReadConns {
		errs = append(errs, (<-s.readers).conn.Close())
	}
	errs = append(errs, (<-s.writer).conn.Close(), s.db.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close history %s: %w", s.cfg.Path, err)
	}
	return nil
}

// write runs fn in one IMMEDIATE transaction, which is rolled back if fn fails
// or the context has ended. fn must look at the context now and then.
func (s *Store) write(ctx context.Context, fn func(*writer) error) error {
	if !s.gate.Enter() {
		return history.ErrClosed
	}
	defer s.gate.Leave()
	select {
	case w := <-s.writer:
		defer func() { s.writer <- w }()
		return transact(ctx, w.conn, "BEGIN IMMEDIATE", func() error { return fn(w) })
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read runs fn in one read transaction: all of it sees one snapshot.
func (s *Store) read(ctx context.Context, fn func(*reader) error) error {
	if !s.gate.Enter() {
		return history.ErrClosed
	}
	defer s.gate.Leave()
	select {
	case r := <-s.readers:
		defer func() { s.readers <- r }()
		return transact(ctx, r.conn, "BEGIN", func() error { return fn(r) })
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transact gives the context to BEGIN, which is what may wait for another
// process. The statements inside run without it: the driver starts a goroutine
// for each statement that has one.
func transact(ctx context.Context, conn *sql.Conn, begin string, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return refused(err)
	}
	err := fn()
	if err == nil {
		_, err = conn.ExecContext(context.Background(), "COMMIT")
	}
	if err != nil {
		// An error here means that SQLite has rolled back by itself.
		_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
		return refused(err)
	}
	return nil
}
