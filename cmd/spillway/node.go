package main

import (
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/edgenode"
	"github.com/spillway-io/spillway/cmd/internal/routernode"
)

type gatewayCmd struct{ config.Flags }

// Run is cmd/gateway.
func (c *gatewayCmd) Run(e *env) error { return edgenode.Run(e.ctx, e.abort, c.Source(os.Environ())) }

type routerCmd struct{ config.Flags }

// Run is cmd/router.
func (c *routerCmd) Run(e *env) error {
	return routernode.Run(e.ctx, e.abort, c.Source(os.Environ()), nil)
}
