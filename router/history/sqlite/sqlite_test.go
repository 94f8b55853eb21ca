package sqlite_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

func TestMain(m *testing.M) {
	historytest.RunCrashWriter(func(path string) (history.Store, error) { return openAt(path)() })
	goleak.VerifyTestMain(m)
}

func openAt(path string) historytest.Open { return openThen(path, time.Now) }

func openThen(path string, now func() time.Time) historytest.Open {
	return func() (history.Store, error) {
		cfg := sqlite.Default()
		cfg.Path, cfg.Now = path, now
		s, err := sqlite.Open(context.Background(), cfg)
		if err != nil {
			return nil, err // not a Store that holds a nil
		}
		return s, nil
	}
}

func TestStoreKeepsItsPromises(t *testing.T) {
	historytest.Run(t, historytest.Target{
		New: func(t testing.TB) historytest.Open {
			// a name that a URI would take for something else
			return openAt(filepath.Join(t.TempDir(), "history ?#%41.db"))
		},
		At: func(t testing.TB, now func() time.Time) historytest.Open {
			return openThen(filepath.Join(t.TempDir(), "history.db"), now)
		},
	})
}

func TestKilledWriterLosesNothingAcked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	historytest.Crash(t, path, openAt(path))
}

// Whoever copies the file of a store that was closed has all of it.
func TestCloseLeavesOneFile(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "history.db"))
	if _, err := s.Heads(context.Background(), []history.HeadQuery{{Channel: "chat:a"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}
