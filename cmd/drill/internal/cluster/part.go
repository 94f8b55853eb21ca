package cluster

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/router/history"
)

// Part runs this process as one part of a cluster if the arguments of its command line
// name one, and says whether they did. The parts have the names and the arguments of the
// commands of spillway (infra, router, gateway), so that a cluster runs the same with
// either. A program that starts clusters of itself, a test binary for example, calls Part
// first of all. between, which may be nil, stands between a router and its store.
func Part(args []string, between func(history.Store) history.Store) (exitCode int, isPart bool) {
	if len(args) == 0 {
		return 0, false
	}
	var part func(ctx, abort context.Context) error
	switch rest := args[1:]; args[0] {
	case "infra":
		part = func(ctx, _ context.Context) error { return runInfra(ctx, rest) }
	case "router":
		part = func(ctx, abort context.Context) error {
			from, err := source(rest)
			if err != nil {
				return err
			}
			return routernode.Run(ctx, abort, from, between)
		}
	case "gateway":
		part = func(ctx, abort context.Context) error {
			from, err := source(rest)
			if err != nil {
				return err
			}
			return edgenode.Run(ctx, abort, from)
		}
	default:
		return 0, false
	}
	return run.Main(args[0], os.Stderr, part), true
}

func runInfra(ctx context.Context, args []string) error {
	var cfg infra.Config
	var only string
	flags := flag.NewFlagSet("infra", flag.ContinueOnError)
	flags.IntVar(&cfg.NATSPort, "nats-port", 0, "")
	flags.IntVar(&cfg.EtcdPort, "etcd-port", 0, "")
	flags.StringVar(&cfg.Dir, "data", "", "")
	flags.StringVar(&only, "only", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg.NoNATS, cfg.NoEtcd = only == "etcd", only == "nats"
	in, err := infra.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer in.Close()
	<-ctx.Done()
	return nil
}

// source is that of `--config FILE`.
func source(args []string) (config.Source, error) {
	if len(args) != 2 || args[0] != "--config" {
		return config.Source{}, fmt.Errorf("unknown arguments %q", args)
	}
	return config.Flags{Config: args[1]}.Source(os.Environ()), nil
}
