package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/sqlite"
)

func BenchmarkStore(b *testing.B) {
	for _, synchronous := range []sqlite.Synchronous{sqlite.Full, sqlite.Normal} {
		b.Run(synchronous.String(), func(b *testing.B) {
			cfg := sqlite.Default()
			cfg.Path = filepath.Join(b.TempDir(), "history.db")
			cfg.Synchronous = synchronous
			s, err := sqlite.Open(context.Background(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			historytest.Bench(b, s, nil)
		})
	}
}
