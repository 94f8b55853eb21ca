// Package clustertest starts whole clusters for tests, and has the tests of whole
// clusters of the product's own program: parts of them are killed, cut off and stopped,
// and clients of the Go SDK are asked what they saw.
//
// Start is also what the tests of packages handovertest and torture start clusters with.
package clustertest

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/router/history/historytest/pgserver"
)

// Start runs a cluster until the test ends. Where PostgreSQL is not installed the test
// is skipped, but not in CI. If the test fails it prints the ends of all logs.
func Start(t testing.TB, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	c, err := cluster.Start(t.Context(), cfg)
	if errors.Is(err, pgserver.ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range c.Processes() {
				t.Logf("%s:\n%s", p.Name, p.LogTail(15))
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Eventually fails the test unless a condition holds within a time.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", within, what)
		}
		<-tick.C
	}
}
