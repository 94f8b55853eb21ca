package relay

import (
	"errors"
	"fmt"
	"net/netip"
)

// PairsPerProcess leaves room for the dead halves of connections that were cut without
// a word, and for attempts that are given up: 20,000 descriptors a process.
const PairsPerProcess = 4_000

// Config travels as JSON.
type Config struct {
	Listen   string    `json:"listen"` // IPv4:port
	Backends []Backend `json:"backends"`
}

// Backend is where connections go.
type Backend struct {
	Addr   string `json:"addr"`   // IPv4:port
	Health string `json:"health"` // http URL that answers 200; "": always well
}

// Validate reports all problems at once.
func (c *Config) Validate() error {
	var errs []error
	check := func(field, value string) {
		if a, err := netip.ParseAddrPort(value); err != nil || !a.Addr().Is4() {
			errs = append(errs, fmt.Errorf("%s: %q: must be IPv4:port", field, value))
		}
	}
	check("listen", c.Listen)
	if len(c.Backends) == 0 {
		errs = append(errs, errors.New("backends: []: must name at least one"))
	}
	for _, b := range c.Backends {
		check("backends", b.Addr)
	}
	return errors.Join(errs...)
}

// Commands, one JSON object a line; each is answered by a line.
const (
	cmdStart = "start" // config
	cmdCut   = "cut"   // silent: without FIN
	cmdStop  = "stop"
)

type command struct {
	Cmd    string  `json:"cmd"`
	Config *Config `json:"config,omitempty"`
	Silent bool    `json:"silent,omitempty"`
}

type line struct {
	Type    string `json:"type"` // the command that it answers, or "error"
	N       int    `json:"n"`    // connections cut
	Message string `json:"message,omitempty"`
}
