package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history/historytest/pgserver"
)

const smallTimeout = 60 * time.Second

// NewSmallDatabase makes a database on a disk of its own with room for some 8 MiB,
// and makeRoom to make that more. The server must be the test's own (Start): it is
// killed before its disk goes.
//
// A disk of a size needs the right to mount one, which no package brings: the test
// is skipped without it.
func (s *Server) NewSmallDatabase(t testing.TB) (dsn string, makeRoom func()) {
	t.Helper()
	disk, makeRoom := smallDisk(t, 16)
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Errorf("kill PostgreSQL: %v", err)
		}
	})
	space := filepath.Join(disk, "space")
	if err := os.Mkdir(space, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Own(space); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), smallTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		fmt.Sprintf("CREATE TABLESPACE small LOCATION '%s'", space),
		"CREATE DATABASE small TABLESPACE small",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return s.DSN("small"), makeRoom
}

// StartWithSmallLog runs a cluster whose write-ahead log has a disk of its own with
// room for some 8 MiB, and keeps all of it, as for a replica that is away. The server
// panics when the disk is full, does not start until makeRoom has made more, and is
// started again and again meanwhile. Skipped as NewSmallDatabase is.
func StartWithSmallLog(t testing.TB) (s *Server, makeRoom func()) {
	t.Helper()
	disk, makeRoom := smallDisk(t, 12)
	log := filepath.Join(disk, "log")
	if err := os.Mkdir(log, 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := pgserver.NewLogging(log, NoSync, "wal_keep_size=1GB")
	skipOrFail(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	// Owns nothing; ends with ctx; waited for in the cleanup.
	go func() {
		defer close(done)
		server.KeepRunning(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := server.Remove(); err != nil {
			t.Errorf("remove PostgreSQL: %v", err)
		}
	})
	return &Server{server}, makeRoom
}

// smallDisk mounts a disk that goes with the test, after what was started on it since.
func smallDisk(t testing.TB, mebibytes int) (disk string, makeRoom func()) {
	t.Helper()
	disk, err := os.MkdirTemp("", "spillway-small-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(disk); err != nil {
			t.Errorf("remove the place of a small disk: %v", err)
		}
	})
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%dm", mebibytes)); err != nil {
		if !errors.Is(err, syscall.EPERM) {
			t.Fatalf("mount a small disk: %v", err)
		}
		t.Skipf("no small disk without the right to mount one: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount a small disk: %v", err)
		}
	})
	return disk, func() {
		if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%dm", 8*mebibytes)); err != nil {
			t.Fatalf("make room: %v", err)
		}
	}
}
