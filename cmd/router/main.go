// Router is the lean production binary of a router: no embedded servers.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

func main() { os.Exit(run.Main("router", os.Stderr, router)) }

func router(ctx, abort context.Context) error {
	// 1. What was asked for; a mistake is one line and exit 2.
	var flags config.Flags
	parser, err := kong.New(&flags, kong.Name("router"), kong.Description("A router of a Spillway cluster."))
	if err != nil {
		panic(err) // the struct is wrong
	}
	if _, err := parser.Parse(os.Args[1:]); err != nil {
		return run.Usagef("%v (router --help lists what there is)", err)
	}
	// 2. File, environment and flags, checked as a whole: all problems at once.
	file, err := routerfile.Load(flags.Source(os.Environ()))
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	// 3. Leaf to root. A database that is away is waited for, until a signal: the router
	// is alive meanwhile, and not ready.
	node, err := routernode.New(ctx, file, routernode.Options{Log: log})
	if err != nil {
		return err
	}
	// 4. Serve until the first signal, then finish what is under way; a second signal
	// ends that at once.
	return node.Run(ctx, abort)
}
