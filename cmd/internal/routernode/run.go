package routernode

import (
	"context"
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/router/history"
)

// Run is a whole router as a process of its own: it reads the configuration, builds the
// node, and serves until ctx ends; abort ends its leave at once. between, which may be
// nil, stands between the router and its store, for tests that break it.
func Run(ctx, abort context.Context, source config.Source, between func(history.Store) history.Store) error {
	file, err := routerfile.Load(source)
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := New(ctx, file, Options{Log: log, Between: between})
	if err != nil {
		return err
	}
	return node.Run(ctx, abort)
}
