package handovertest

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/drill/internal/clustertest"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// TestMain is the test, or one process of a cluster.
func TestMain(m *testing.M) {
	if code, isPart := cluster.Part(os.Args[1:], nil); isPart {
		os.Exit(code)
	}
	flag.Parse()
	code := m.Run()
	if err := pgtest.RemoveShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// newCluster runs routers on PostgreSQL, with a namespace of each durability.
func newCluster(t *testing.T, routers int, more string) *cluster.Cluster {
	namespaces := ""
	for name, durability := range kinds {
		namespaces += fmt.Sprintf("%s: {history_size: 100000, history_ttl: 1h, durability: %s}, ", name, durability)
	}
	return clustertest.Start(t, cluster.Config{
		Routers: routers, Store: cluster.Postgres, Namespaces: "{" + namespaces + "}", Router: more, StartTime: 90 * time.Second,
	})
}
