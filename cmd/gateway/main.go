// Gateway is the lean production binary of an edge: no embedded servers, no store.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

func main() { os.Exit(run.Main("gateway", os.Stderr, gateway)) }

func gateway(ctx, abort context.Context) error {
	// 1. What was asked for; a mistake is one line and exit 2.
	var flags config.Flags
	parser, err := kong.New(&flags, kong.Name("gateway"), kong.Description("An edge of a Spillway cluster."))
	if err != nil {
		panic(err) // the struct is wrong
	}
	if _, err := parser.Parse(os.Args[1:]); err != nil {
		return run.Usagef("%v (gateway --help lists what there is)", err)
	}
	// 2. File, environment and flags, checked as a whole: all problems at once.
	read := func() (*gatewayfile.File, error) { return gatewayfile.Load(flags.Source(os.Environ())) }
	file, err := read()
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	// 3. Leaf to root; ports are taken here, so that a mistake shows before traffic.
	// Infrastructure that is away is waited for: /readyz says so, /healthz is fine.
	node, err := edgenode.New(ctx, file, log)
	if err != nil {
		return err
	}
	// 4. SIGHUP reads the file again; what is wrong is refused whole.
	node.ReadAgain(read)
	// 5. Serve until the first signal, then leave within drain.deadline; a second signal
	// ends that at once.
	return node.Run(ctx, abort)
}
