package main

import (
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type gatewayCmd struct {
	Config string `required:"" help:"gateway.yaml." type:"path"`
}

func (c *gatewayCmd) Run(e *env) error {
	file, err := config.LoadGateway(config.Source{File: c.Config, Environ: os.Environ()}, func(*config.GatewayFile) error { return nil })
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := edgenode.New(e.abort, *file, log)
	if err != nil {
		return err
	}
	return node.Run(e.ctx)
}

type routerCmd struct {
	Config string `required:"" help:"router.yaml." type:"path"`
}

func (c *routerCmd) Run(e *env) error {
	file, err := config.LoadRouter(config.Source{File: c.Config, Environ: os.Environ()}, func(*config.RouterFile) error { return nil })
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := routernode.New(e.ctx, *file, false, log)
	if err != nil {
		return err
	}
	return node.Run(e.ctx, e.abort)
}
