package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
	"github.com/spillway-io/spillway/router/history/postgres"
)

func TestMain(m *testing.M) {
	historytest.RunCrashWriter(func(dsn string) (history.Store, error) { return openAt(dsn)() })
	code := m.Run()
	if err := errors.Join(pgtest.RemoveShared(), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func openAt(dsn string) historytest.Open { return openThen(dsn, time.Now) }

func openThen(dsn string, now func() time.Time) historytest.Open {
	return func() (history.Store, error) {
		cfg := postgres.Default()
		cfg.DSN, cfg.Now = dsn, now
		s, err := postgres.Open(context.Background(), cfg)
		if err != nil {
			return nil, err // not a Store that holds a nil
		}
		return s, nil
	}
}

func TestStoreKeepsItsPromises(t *testing.T) {
	server := pgtest.Shared(t)
	historytest.Run(t, historytest.Target{
		New: func(t testing.TB) historytest.Open { return openAt(server.NewDatabase(t)) },
		At:  func(t testing.TB, now func() time.Time) historytest.Open { return openThen(server.NewDatabase(t), now) },
	})
}

// Distributed databases know no weaker isolation, and there two writers that meet
// are a race that one of them loses.
func TestSerializableDatabaseKeepsThePromises(t *testing.T) {
	server := pgtest.Shared(t)
	meeting := []string{"TwoBelievers", "TwoCreators", "TwoStoresOver", "PagesAgree", "KeysAreFound", "TrimGoes", "ForgettingLose", "TwoRetentions"}
	at := func(t testing.TB, now func() time.Time) historytest.Open {
		if !slices.ContainsFunc(meeting, func(name string) bool { return strings.Contains(t.Name(), name) }) {
			t.Skip("is not about writers that meet")
		}
		return openThen(server.NewDatabase(t)+"&default_transaction_isolation=serializable", now)
	}
	historytest.Run(t, historytest.Target{New: func(t testing.TB) historytest.Open { return at(t, time.Now) }, At: at})
}

func TestKilledWriterLosesNothingAcked(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	historytest.Crash(t, dsn, openAt(dsn))
}

func TestKilledServerLosesNothingAcked(t *testing.T) {
	server := pgtest.Start(t, pgtest.NoSync)
	historytest.CrashServer(t, openAt(server.DSN("postgres")), server.Kill, server.Restart)
}
