package main

import (
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type gatewayCmd struct{ config.Flags }

// Run is cmd/gateway.
func (c *gatewayCmd) Run(e *env) error {
	read := func() (*gatewayfile.File, error) { return gatewayfile.Load(c.Source(os.Environ())) }
	file, err := read()
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := edgenode.New(e.ctx, file, log)
	if err != nil {
		return err
	}
	node.ReadAgain(read)
	return node.Run(e.ctx, e.abort)
}

type routerCmd struct{ config.Flags }

// Run is cmd/router.
func (c *routerCmd) Run(e *env) error {
	file, err := routernode.Load(c.Source(os.Environ()))
	if err != nil {
		return err
	}
	log, err := run.NewLog(os.Stderr, file.LogLevel)
	if err != nil {
		return err
	}
	node, err := routernode.New(e.ctx, file, routernode.Options{Log: log})
	if err != nil {
		return err
	}
	return node.Run(e.ctx, e.abort)
}
