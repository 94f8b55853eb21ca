package edgenode

import (
	"context"
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// Run is a whole edge as a process of its own: it reads the configuration, and again at
// each SIGHUP, builds the node, and serves until ctx ends; abort ends its drain at once.
func Run(ctx, abort context.Context, source config.Source) error {
	read := func() (*gatewayfile.File, error) { return gatewayfile.Load(source) }
	file, err := read()
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := New(ctx, file, log)
	if err != nil {
		return err
	}
	node.ReadAgain(read)
	return node.Run(ctx, abort)
}
