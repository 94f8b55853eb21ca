// Router is the lean production binary of a router: no embedded servers.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type options struct {
	Config string `required:"" help:"router.yaml." type:"path"`
}

func main() { os.Exit(realMain(os.Args[1:])) }

func realMain(args []string) int {
	// 1. What was asked for; a mistake is one line and exit 2.
	var o options
	parser, err := kong.New(&o, kong.Name("router"), kong.Description("A router of a Spillway cluster."))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	if _, err := parser.Parse(args); err != nil {
		fmt.Fprintf(os.Stderr, "router: %v (try router --help)\n", err)
		return run.ExitUsage
	}
	return run.Main("router", os.Stderr, func(ctx, abort context.Context) error {
		// 2. The file and the environment, checked as a whole.
		source := config.Source{File: o.Config, Environ: os.Environ()}
		file, err := config.LoadRouter(source, func(*config.RouterFile) error { return nil })
		if err != nil {
			return err
		}
		log, err := run.NewLog(os.Stderr, file.LogLevel)
		if err != nil {
			return err
		}
		// 3. Leaf to root. The store is waited for, until a signal.
		node, err := routernode.New(ctx, *file, false, log)
		if err != nil {
			return err
		}
		// 4. Serve until the first signal, then finish what is under way.
		return node.Run(ctx, abort)
	})
}
