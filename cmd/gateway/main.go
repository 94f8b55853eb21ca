// Gateway is the lean production binary of an edge: no embedded servers, no store.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type options struct {
	Config string `required:"" help:"gateway.yaml." type:"path"`
}

func main() { os.Exit(realMain(os.Args[1:])) }

func realMain(args []string) int {
	// 1. What was asked for; a mistake is one line and exit 2.
	var o options
	parser, err := kong.New(&o, kong.Name("gateway"), kong.Description("An edge of a Spillway cluster."))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	if _, err := parser.Parse(args); err != nil {
		fmt.Fprintf(os.Stderr, "gateway: %v (try gateway --help)\n", err)
		return run.ExitUsage
	}
	return run.Main("gateway", os.Stderr, func(ctx, abort context.Context) error {
		// 2. The file and the environment, checked as a whole.
		source := config.Source{File: o.Config, Environ: os.Environ()}
		file, err := config.LoadGateway(source, func(*config.GatewayFile) error { return nil })
		if err != nil {
			return err
		}
		log, err := run.NewLog(os.Stderr, file.LogLevel)
		if err != nil {
			return err
		}
		// 3. Leaf to root; ports are taken here, so that a mistake shows before traffic.
		node, err := edgenode.New(abort, *file, log)
		if err != nil {
			return err
		}
		// 4. Serve until the first signal, then leave on drain.deadline; a second signal
		// ends that at once.
		return node.Run(ctx)
	})
}
