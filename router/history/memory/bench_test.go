package memory_test

import (
	"testing"

	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/memory"
)

func BenchmarkStore(b *testing.B) {
	s := memory.New(memory.Default())
	defer s.Close()
	historytest.Bench(b, s, nil)
}
