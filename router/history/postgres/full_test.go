package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// The disk of the tables is full, that of the log is not: the server goes on.
func TestFullDiskLosesNothingAndGoesOn(t *testing.T) {
	dsn, makeRoom := pgtest.Start(t, pgtest.NoSync).NewSmallDatabase(t)
	incompressible(t, dsn)
	historytest.Full(t, openAt(dsn), func(history.Store) { makeRoom() })
}

// The disk of the write-ahead log is full: the server panics, and again whenever it is
// started, until there is room.
func TestFullLogLosesNothingAndGoesOn(t *testing.T) {
	server, makeRoom := pgtest.StartWithSmallLog(t)
	dsn := server.DSN("postgres")
	incompressible(t, dsn)
	historytest.FullDown(t, openAt(dsn), makeRoom)
}

// incompressible makes the tables, and big events of zeros take their room.
func incompressible(t *testing.T, dsn string) {
	s, err := openAt(dsn)()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "ALTER TABLE history_events ALTER COLUMN data SET STORAGE EXTERNAL"); err != nil {
		t.Fatal(err)
	}
}
