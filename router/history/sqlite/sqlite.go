// Package sqlite keeps history in one SQLite file: for `spillway dev` and for a
// single router embedded with its data.
//
// The router calls it as any history.Store; it calls modernc.org/sqlite, which
// is Go all the way down. Open makes the file and its tables, Close ends it.
// There is one writer connection, taken in turn, and a small pool of readers
// that see the last commit (WAL). No goroutine is started here; the driver has
// one for each wait that a context may end.
//
// Layout: events are an append log in the order of their commits. Each tells
// where the event before it in its channel is, the row of a channel where its
// newest one is; so no index grows with an event at a random place, which is
// what costs (a page of the log of writes for a row). Every 64th event of a
// channel has a mark, from which older ones are found. Names are in a table of
// their own: the rows that every append changes are small and lie together.
//
// Invariants: a run compares and moves its channel's row in the transaction
// that inserts its events (IMMEDIATE: no other writer, of this process or
// another, comes between). Epochs come from a counter in the same file. A place
// in the log is never given twice. first..head are in the log, chained from last
// down to first; nothing below first is followed. oldest_ms is the time of first.
//
// Several processes may use one file; each finds what the others commit.
//
// Left out on purpose: a context does not end a sync to disk; vacuuming (the
// pages of trimmed events are used again, the file does not shrink).
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/internal/gate"
)

const (
	// busyTimeout bounds the wait for another process that writes to the same
	// file; a context ends it earlier.
	busyTimeout = 10 * time.Second
	// pageBytes is the size of a page in a new file.
	pageBytes = 4096
	// checkpointPages is after how many pages in the log of writes these are
	// brought to the file: 16 MiB. The same pages of the channels' rows are
	// written again and again; with more between two checkpoints fewer of them
	// go to the file, and a commit that does one takes longer.
	checkpointPages = 4096
)

// Store is a history.Store in one file.
type Store struct {
	// Immutable after Open.
	cfg     Config
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
	s := &Store{
		cfg:     cfg,
		readers: make(chan *reader, cfg.ReadConns),
		writer:  make(chan *writer, 1),
	}
	if err := s.connect(ctx); err != nil {
		return nil, fmt.Errorf("open history %s: %w", cfg.Path, errors.Join(err, s.disconnect()))
	}
	return s, nil
}

// connect takes all connections for good: statements are prepared on each once.
func (s *Store) connect(ctx context.Context) error {
	c, err := dial(s.cfg.dsn())
	if err != nil {
		return err
	}
	if err := migrate(ctx, c); err != nil {
		return errors.Join(err, c.Close())
	}
	w, err := newWriter(c, s.cfg.Now)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.writer <- w
	for range s.cfg.ReadConns {
		c, err := dial(s.cfg.dsn())
		if err != nil {
			return err
		}
		r, err := newReader(c)
		if err != nil {
			return errors.Join(err, c.Close())
		}
		s.readers <- r
	}
	return nil
}

// disconnect closes the connections that are not in use.
func (s *Store) disconnect() error {
	var errs []error
	for {
		select {
		case r := <-s.readers:
			errs = append(errs, r.conn.Close())
		case w := <-s.writer:
			errs = append(errs, w.conn.Close())
		default:
			return errors.Join(errs...)
		}
	}
}

func (c Config) dsn() string {
	most := int64(0) // leaves the bound as it is: none
	if c.MaxBytes > 0 {
		most = c.MaxBytes / pageBytes
	}
	pragmas := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		fmt.Sprintf("page_size(%d)", pageBytes),
		fmt.Sprintf("max_page_count(%d)", most),
		"journal_mode(WAL)",
		fmt.Sprintf("synchronous(%s)", c.Synchronous),
		fmt.Sprintf("cache_size(-%d)", c.CacheBytes>>10),
		"temp_store(MEMORY)",
		fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages),
		"journal_size_limit(67108864)", // a log that a slow reader let grow is cut back
	}}
	return "file:" + (&url.URL{Path: c.Path}).EscapedPath() + "?" + pragmas.Encode()
}

// Close implements history.Store.
func (s *Store) Close() error {
	if !s.gate.Close() {
		return nil
	}
	if err := s.disconnect(); err != nil { // all are back: nobody is inside
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
		return w.conn.transact(ctx, w.conn.beginNow, func() error { return fn(w) })
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
		return r.conn.transact(ctx, r.conn.begin, func() error { return fn(r) })
	case <-ctx.Done():
		return ctx.Err()
	}
}
