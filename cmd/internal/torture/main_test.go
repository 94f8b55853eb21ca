package torture

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/infra"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

var (
	long    = flag.Bool("long", false, "faults last as long as in production: leases run out, the bus is away for 20 s")
	minutes = flag.Float64("minutes", 0, "how long each trial is under faults; 0: a few seconds")
	seed    = flag.Uint64("seed", 0, "of the faults; 0: from the clock")
)

// TestMain is the test, or one process of a trial's cluster.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if child := children[os.Args[1]]; child != nil {
			os.Exit(run.Main(os.Args[1], os.Stderr, func(ctx, abort context.Context) error {
				return child(ctx, abort, os.Args[2:])
			}))
		}
	}
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	os.Exit(m.Run())
}

// children are the commands of `spillway` that a cluster needs.
var children = map[string]func(ctx, abort context.Context, args []string) error{
	"infra": infraChild, "router": routerChild, "gateway": edgeChild,
}

func infraChild(ctx, _ context.Context, args []string) error {
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

func routerChild(ctx, abort context.Context, args []string) error {
	src, err := source(args)
	if err != nil {
		return err
	}
	file, err := routernode.Load(src)
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := routernode.New(ctx, file, routernode.Options{Log: log, Between: breakage()})
	if err != nil {
		return err
	}
	return node.Run(ctx, abort)
}

func edgeChild(ctx, abort context.Context, args []string) error {
	src, err := source(args)
	if err != nil {
		return err
	}
	file, err := edgenode.Load(src)
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := edgenode.New(ctx, file, log)
	if err != nil {
		return err
	}
	return node.Run(ctx, abort)
}
