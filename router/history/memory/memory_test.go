package memory_test

import (
	"testing"

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
	})
}
