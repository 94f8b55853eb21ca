package router

import (
	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/peers"
)

// What cmd gives a Router.
var (
	_ Membership = (*presence.Cluster)(nil)
	_ Peers      = (*peers.Peers)(nil)
)
