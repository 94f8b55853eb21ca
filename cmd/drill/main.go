// Drill is the proving ground: it starts clusters of processes on this machine, fills
// them with clients, breaks them on purpose, measures them, and judges what was promised.
//
// Nothing that serves links it. `drill SCENARIO` runs a drill and without a scenario
// lists them; the bench commands measure. What is printed goes to standard output, what
// is being done to standard error. Exit codes are those of the command spillway: 0 done, 1
// failed or a promise broken, 2 wrong usage.
//
// The processes of a cluster, its clients and its balancer are this program again, called
// by names of its own that the help does not show.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// cli is the command line.
type cli struct {
	Drill    drillCmd        `cmd:"" default:"withargs" help:"Break a cluster on purpose and check what was promised. The word itself may be left out: drill restart."`
	Bench    benchCmd        `cmd:"" help:"Measure an edge on this machine: idle connections and fan-out, beside a bare write loop."`
	BenchPub benchPublishCmd `cmd:"" name:"bench-publish" help:"Measure durable publishes on this machine: throughput, latency, CPU, commits."`
	BenchUni benchUnicastCmd `cmd:"" name:"bench-unicast" help:"Measure events with one receiver each on this machine: CPU of router, bus and edge."`

	Loadgen loadgenCmd `cmd:"" hidden:"" help:"A load generator, driven by its parent."`
	Relay   relayCmd   `cmd:"" hidden:"" help:"A small TCP balancer, driven by its parent."`
	Floor   floorCmd   `cmd:"" hidden:"" help:"The least a server can do, driven by its parent."`
}

// env is what commands get from main.
type env struct {
	ctx context.Context // ends with the first signal
}

func main() { os.Exit(realMain(os.Args[1:])) }

func realMain(args []string) int {
	if code, isPart := cluster.Part(args, nil); isPart {
		return code
	}
	var c cli
	parser, err := kong.New(&c, kong.Name("drill"), kong.Description("Drills and benchmarks of a realtime fan-out cluster."), drillDefaults(args))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	return run.Main("drill", os.Stderr, func(ctx, _ context.Context) error {
		command, err := parser.Parse(args)
		if err != nil {
			return run.Usagef("%v (drill --help lists what there is)", err)
		}
		return command.Run(&env{ctx})
	})
}
