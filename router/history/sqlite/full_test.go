package sqlite_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

// The room is made by whoever else wrote to the disk.
func TestFullDiskLosesNothingAndGoesOn(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("no small disk without the right to mount one (the bounded file is tested all the same): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	historytest.Full(t, openAt(filepath.Join(dir, "history.db")), func(history.Store) {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=32m"); err != nil {
			t.Fatalf("make room: %v", err)
		}
	})
}

// The room is made by retention.
func TestFullFileLosesNothingAndGoesOn(t *testing.T) {
	cfg := sqlite.Default()
	cfg.Path = filepath.Join(t.TempDir(), "history.db")
	cfg.MaxBytes = 2 << 20
	open := func() (history.Store, error) {
		s, err := sqlite.Open(context.Background(), cfg)
		if err != nil {
			return nil, err // not a Store that holds a nil
		}
		return s, nil
	}
	historytest.Full(t, open, func(s history.Store) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := s.Trim(ctx, []history.Retention{{Namespace: "full", Size: 20}}, 0, 10_000); err != nil {
			t.Fatalf("trim in a full file: %v", err)
		}
	})
}
