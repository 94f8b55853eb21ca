package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// beside is a connection of another process's kind to the same file.
func beside(t *testing.T, path string) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func exec(t *testing.T, conn *sql.Conn, query string, args ...any) {
	t.Helper()
	if _, err := conn.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func open(t *testing.T, path string) history.Store {
	t.Helper()
	s, err := openAt(path)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestOffsetsAreExactUpToTheLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	s := open(t, path)
	conn := beside(t, path)
	historytest.LastOffsets(t, s, func(channel string, head uint64) {
		exec(t, conn, "UPDATE heads SET head = ?1, first = ?1 + 1 WHERE id = (SELECT id FROM names WHERE channel = ?2)", int64(head), channel)
	})
}

// Another process that holds the file's lock delays a writer until its deadline,
// and no reader.
func TestDeadlineEndsTheWaitForAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	s := open(t, path)
	heads, err := s.Heads(context.Background(), []history.HeadQuery{{Channel: "chat:a"}})
	if err != nil {
		t.Fatal(err)
	}
	run := history.Run{Channel: "chat:a", Epoch: heads[0].Epoch, Events: []history.Event{{Offset: 1, Data: []byte("1")}}}
	conn := beside(t, path)
	exec(t, conn, "BEGIN IMMEDIATE")

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Append(ctx, []history.Run{run}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("append against a held lock: %v", err)
	}
	if _, err := s.Read(context.Background(), []history.Range{{Channel: "chat:a", Limit: 1}}); err != nil {
		t.Fatalf("read beside a held lock: %v", err)
	}
	exec(t, conn, "ROLLBACK")
	outcomes, err := s.Append(context.Background(), []history.Run{run})
	if err != nil || outcomes[0] != history.Stored {
		t.Fatalf("append afterwards: %v, %v", outcomes, err)
	}
}

func TestForeignAndNewerFilesAreRefused(t *testing.T) {
	for pragma, want := range map[string]string{
		"PRAGMA application_id = 7":  "another application",
		"PRAGMA user_version = 1000": "schema version 1000",
	} {
		path := filepath.Join(t.TempDir(), "history.db")
		exec(t, beside(t, path), pragma)
		s, err := openAt(path)()
		if err == nil {
			_ = s.Close()
			t.Fatalf("%s: opened", pragma)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pragma, err)
		}
	}
	if _, err := openAt(filepath.Join(t.TempDir(), "no", "such", "folder.db"))(); err == nil {
		t.Error("opened a file in a folder that is not there")
	}
}

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	cfg := sqlite.Default()
	if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), "path: ") {
		t.Errorf("default without a path: %v", err)
	}
	err := sqlite.Config{Synchronous: 9}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"path: ", "synchronous: Synchronous(9)", "read_conns: 0", "cache_bytes: 0"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not tell %q", err, field)
		}
	}
}

// A read that is longer than somebody waits ends soon after its deadline, and its connection, the
// only one here, serves the next.
func TestDeadlineEndsALongRead(t *testing.T) {
	cfg := sqlite.Default()
	cfg.Path, cfg.Synchronous, cfg.ReadConns = filepath.Join(t.TempDir(), "history.db"), sqlite.Normal, 1
	s, err := sqlite.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	heads, err := s.Heads(context.Background(), []history.HeadQuery{{Channel: "chat:a"}})
	if err != nil {
		t.Fatal(err)
	}
	run := history.Run{Channel: "chat:a", Epoch: heads[0].Epoch}
	for i := range 1000 {
		run.Events = append(run.Events, history.Event{Offset: uint64(i + 1), Data: make([]byte, 200)})
	}
	if outcomes, err := s.Append(context.Background(), []history.Run{run}); err != nil || outcomes[0] != history.Stored {
		t.Fatalf("append: %v, %v", outcomes, err)
	}
	long := make([]history.Range, 20)
	for i := range long {
		long[i] = history.Range{Channel: "chat:a", Limit: 1000}
	}
	began := time.Now()
	if _, err := s.Read(context.Background(), long); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(began)
	ctx, cancel := context.WithTimeout(context.Background(), whole/20)
	defer cancel()
	began = time.Now()
	if _, err := s.Read(ctx, long); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a read of %v with %v to go: %v", whole, whole/20, err)
	}
	cut := time.Since(began)
	t.Logf("whole %v, cut off %v", whole, cut)
	if cut > whole/2 {
		t.Errorf("a read of %v ended after %v, its deadline was %v", whole, cut, whole/20)
	}
	if pages, err := s.Read(context.Background(), long[:1]); err != nil || len(pages[0].Events) != 1000 {
		t.Errorf("the next read: %v", err)
	}
}
