package handovertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/cluster"
	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/router/history/historytest/pgtest"
)

// TestMain is the test, or one process of a cluster.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if child := children[os.Args[1]]; child != nil {
			os.Exit(run.Main(os.Args[1], os.Stderr, func(ctx, abort context.Context) error {
				return child(ctx, abort, os.Args[2:])
			}))
		}
	}
	flag.Parse()
	code := m.Run()
	if err := pgtest.RemoveShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// children are the commands of `spillway` that a cluster needs.
var children = map[string]func(ctx, abort context.Context, args []string) error{
	"infra": infraChild, "router": routerChild,
}

func infraChild(ctx, _ context.Context, args []string) error {
	var cfg infra.Config
	flags := flag.NewFlagSet("infra", flag.ContinueOnError)
	flags.IntVar(&cfg.NATSPort, "nats-port", 0, "")
	flags.IntVar(&cfg.EtcdPort, "etcd-port", 0, "")
	flags.StringVar(&cfg.Dir, "data", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	in, err := infra.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer in.Close()
	<-ctx.Done()
	return nil
}

func routerChild(ctx, abort context.Context, args []string) error {
	if len(args) != 2 || args[0] != "--config" {
		return fmt.Errorf("unknown arguments %q", args)
	}
	file, err := routernode.Load(config.Flags{Config: args[1]}.Source(os.Environ()))
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := routernode.New(ctx, file, routernode.Options{Log: log})
	if err != nil {
		return err
	}
	return node.Run(ctx, abort)
}

// newCluster runs routers on PostgreSQL, with a namespace of each durability.
func newCluster(t *testing.T, routers int, more string) *cluster.Cluster {
	pgtest.Shared(t) // skips where there is none
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	namespaces := ""
	for name, durability := range kinds {
		namespaces += fmt.Sprintf("%s: {history_size: 100000, history_ttl: 1h, durability: %s}, ", name, durability)
	}
	c, err := cluster.Start(ctx, cluster.Config{Routers: routers, Store: cluster.Postgres, Namespaces: "{" + namespaces + "}", Router: more})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
