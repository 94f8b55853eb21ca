// Package pgtest gives throw-away PostgreSQL clusters (package pgserver) to tests:
// those of router/history/postgres, and those of whole clusters.
//
// Where PostgreSQL is not installed the test is skipped, unless CI=true.
package pgtest

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/spillway-io/spillway/router/history/historytest/pgserver"
)

// Server is one cluster. Its methods may be called from any goroutine.
type Server struct{ *pgserver.Server }

// Start runs a cluster that ends with the test, with more settings if need be.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := pgserver.New(settings...)
	skipOrFail(t, err)
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Errorf("remove PostgreSQL: %v", err)
		}
	})
	return &Server{s}
}

// shared is the cluster of this test binary.
var shared struct {
	once   sync.Once
	server *pgserver.Server
	err    error
}

// NoSync is for tests that lose no power: what a killed server has written the
// system keeps, and a busy disk would make each commit wait.
const NoSync = "fsync=off"

// Shared is one cluster for all tests of the binary, started by the first that
// asks, with NoSync. TestMain calls RemoveShared after m.Run.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = pgserver.New(NoSync) })
	skipOrFail(t, shared.err)
	return &Server{shared.server}
}

// RemoveShared ends the cluster of Shared, if there is one.
func RemoveShared() error {
	shared.once.Do(func() { shared.err = errors.New("the tests are over") })
	if shared.server == nil {
		return nil
	}
	return shared.server.Remove()
}

func skipOrFail(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if errors.Is(err, pgserver.ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	t.Fatalf("start PostgreSQL: %v", err)
}

// NewDatabase makes an empty database and returns its DSN. It goes with the
// cluster.
func (s *Server) NewDatabase(t testing.TB) string {
	t.Helper()
	dsn, err := s.Server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}
