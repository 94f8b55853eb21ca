package postgres_test

import (
	"testing"

	"github.com/spillway-io/spillway/router/history/historytest"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

func BenchmarkStore(b *testing.B) {
	server := pgtest.Start(b)
	s, err := openAt(server.DSN("postgres"))()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	historytest.Bench(b, s, server.CPU)
}
