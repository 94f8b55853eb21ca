package router

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/postgres"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// backup is a real store that can be set back to how it was.
type backup struct {
	store   history.Store
	save    func()
	restore func() // the store is the one that was saved last
	wipe    func() // the store is as new, its sequence too
}

// backups are the stores that can be set back, by name.
func backups() map[string]func(testing.TB) *backup {
	return map[string]func(testing.TB) *backup{
		"sqlite":   sqliteBackup,
		"postgres": func(t testing.TB) *backup { return postgresBackup(t, pgtest.Shared(t).NewDatabase(t)) },
	}
}

// swapped is a store that is another one after a restore.
type swapped struct {
	mu sync.RWMutex
	history.Store
}

func (s *swapped) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.Store.Append(ctx, runs)
}

func (s *swapped) Heads(ctx context.Context, q []history.HeadQuery) ([]history.Head, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.Store.Heads(ctx, q)
}

func (s *swapped) Renew(ctx context.Context, r []history.Renewal) ([]history.Head, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.Store.Renew(ctx, r)
}

func (s *swapped) Read(ctx context.Context, r []history.Range) ([]history.Page, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.Store.Read(ctx, r)
}

func sqliteBackup(t testing.TB) *backup {
	dir := t.TempDir()
	file, saved := filepath.Join(dir, "history.db"), filepath.Join(dir, "saved.db")
	open := func() history.Store {
		cfg := sqlite.Default()
		cfg.Path, cfg.Synchronous = file, sqlite.Normal
		s, err := sqlite.Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := &swapped{Store: open()}
	t.Cleanup(func() { _ = s.Store.Close() })
	// between closes the store, does something to its file and opens it again.
	between := func(do func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.Store.Close(); err != nil {
			t.Fatal(err)
		}
		do()
		s.Store = open()
	}
	// copyFile takes the log and its index along, which may outlive a close.
	copyFile := func(from, to string) {
		for _, part := range []string{"", "-wal", "-shm"} {
			data, err := os.ReadFile(from + part)
			if err == nil {
				err = os.WriteFile(to+part, data, 0o600)
			} else if part != "" {
				err = removeFile(to + part)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return &backup{
		store:   s,
		save:    func() { between(func() { copyFile(file, saved) }) },
		restore: func() { between(func() { copyFile(saved, file) }) },
		wipe: func() {
			between(func() { _, _, _ = removeFile(file), removeFile(file+"-wal"), removeFile(file+"-shm") })
		},
	}
}

func removeFile(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func postgresBackup(t testing.TB, dsn string) *backup {
	cfg := postgres.Default()
	cfg.DSN = dsn
	s, err := postgres.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	run := func(statements string) func() {
		return func() {
			t.Helper()
			conn, err := pgx.Connect(context.Background(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(context.Background(), statements); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &backup{
		store: s,
		save: run(`CREATE TABLE saved_channels AS TABLE history_channels; CREATE TABLE saved_events AS TABLE history_events;
			CREATE TABLE saved_keys AS TABLE history_keys; CREATE TABLE saved_epoch AS SELECT last_value FROM history_epochs`),
		restore: run(`TRUNCATE history_channels, history_events, history_keys;
			INSERT INTO history_channels SELECT * FROM saved_channels; INSERT INTO history_events SELECT * FROM saved_events;
			INSERT INTO history_keys SELECT * FROM saved_keys; SELECT setval('history_epochs', (SELECT last_value FROM saved_epoch))`),
		wipe: run(`TRUNCATE history_channels, history_events, history_keys; ALTER SEQUENCE history_epochs RESTART`),
	}
}
