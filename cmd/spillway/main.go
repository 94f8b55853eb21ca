// Spillway is the command for everything: a whole cluster in one process for
// development, the nodes of a real one, and the tools to talk to it.
//
// Events and answers go to standard output, everything about them to standard
// error. Exit codes: 0 done, 1 failed, 2 wrong usage (arguments, configuration,
// ports that are taken), 3 partly done; errors are one line.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

// cli is the command line.
type cli struct {
	Dev        devCmd        `cmd:"" help:"Run a whole cluster in this process: NATS, etcd, SQLite, a router, edges."`
	Publish    publishCmd    `cmd:"" help:"Publish events."`
	Subscribe  subscribeCmd  `cmd:"" help:"Follow channels as a client does."`
	History    historyCmd    `cmd:"" help:"Read what was published on a channel."`
	Token      tokenCmd      `cmd:"" help:"Make a token for a client."`
	Nodes      nodesCmd      `cmd:"" help:"List the nodes of the cluster."`
	Settle     settleCmd     `cmd:"" help:"Show how regions settle after restarts and losses: incidents, and new connections per second."`
	Drain      drainCmd      `cmd:"" help:"Let an edge move its clients to the others and leave."`
	Undrain    undrainCmd    `cmd:"" help:"Make an edge serve again that is being drained."`
	Evacuate   evacuateCmd   `cmd:"" help:"Empty a region into the others, or take it into service again."`
	Operations operationsCmd `cmd:"" help:"List drains, evacuations and rebalances of the last day."`
	Abort      abortCmd      `cmd:"" help:"Stop an operation."`
	Disconnect disconnectCmd `cmd:"" help:"Close the connections of a user or a session."`
	Revoke     revokeCmd     `cmd:"" help:"Make tokens of a user bad, and close what came with them."`
	Settings   settingsCmd   `cmd:"" help:"Hot settings of all edges."`
	Infra      infraCmd      `cmd:"" help:"Run NATS and etcd in a process of their own, to try separate nodes on one machine."`
	Gateway    gatewayCmd    `cmd:"" help:"Run an edge (what cmd/gateway runs)."`
	Router     routerCmd     `cmd:"" help:"Run a router (what cmd/router runs)."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// env is what commands get from main.
type env struct {
	ctx   context.Context // ends with the first signal
	abort context.Context // ends with the second
}

func main() { os.Exit(realMain(os.Args[1:])) }

func realMain(args []string) int {
	var c cli
	parser, err := kong.New(&c, kong.Name("spillway"), kong.Description("A realtime fan-out cluster."))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	return run.Main("spillway", os.Stderr, func(ctx, abort context.Context) error {
		command, err := parser.Parse(args)
		if err != nil {
			return run.Usagef("%v (spillway --help lists what there is)", err)
		}
		return command.Run(&env{ctx, abort})
	})
}

type versionCmd struct{}

// Run prints one line.
func (versionCmd) Run(*env) error {
	_, err := fmt.Printf("spillway %s %s\n", run.Version(), run.GoVersion())
	return err
}
