package router

import (
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/peers"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/bus"
	"github.com/spillway-io/spillway/router/table"
)

// What cmd gives a Router.
var (
	_ Membership = (*presence.Cluster)(nil)
	_ api.Peers  = (*peers.Peers)(nil)
	_ table.Bus  = (*bus.Bus)(nil)
)
