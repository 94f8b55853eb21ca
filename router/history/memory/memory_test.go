package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStoreKeepsItsPromises(t *testing.T) {
	historytest.Run(t, historytest.Target{
		Mortal: true,
		New: func(testing.TB) historytest.Open {
			return func() (history.Store, error) { return memory.New(memory.Default()), nil }
		},
		At: func(_ testing.TB, now func() time.Time) historytest.Open {
			return func() (history.Store, error) { return memory.New(memory.Config{Now: now}), nil }
		},
	})
}
