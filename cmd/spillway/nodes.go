package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type nodesCmd struct {
	remote
	JSON  bool `help:"Print one JSON object a line." name:"json"`
	Watch bool `help:"Once a second, until interrupted."`
}

// Run lists the members as one router sees them.
func (c *nodesCmd) Run(e *env) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewAdminServiceClient(conn)
	return watch(e.ctx, &c.remote, c.Watch, func(ctx context.Context) (*routerv1.ListNodesResponse, error) {
		return client.ListNodes(ctx, &routerv1.ListNodesRequest{})
	}, func(answer *routerv1.ListNodesResponse) error { return c.print(os.Stdout, answer.Nodes) })
}

// nodeLine is one node in --json.
type nodeLine struct {
	ID            string  `json:"id"`
	Role          string  `json:"role"`
	Region        string  `json:"region"`
	Zone          string  `json:"zone,omitempty"`
	Address       string  `json:"address,omitempty"`
	State         string  `json:"state"`
	Version       string  `json:"version"`
	Capacity      uint64  `json:"capacity"`
	Conns         uint64  `json:"conns"`
	Subscriptions uint64  `json:"subscriptions"`
	Channels      uint64  `json:"channels"`
	UpMS          uint64  `json:"up_ms"`
	SilentMS      *uint64 `json:"silent_ms,omitempty"`
}

func (c *nodesCmd) print(to io.Writer, nodes []*routerv1.Node) error {
	if c.JSON {
		enc := json.NewEncoder(to)
		for _, n := range nodes {
			err := enc.Encode(nodeLine{
				n.Id, n.Role, n.Region, n.Zone, n.Address, n.State, n.Version, n.Capacity, n.Conns, n.Subscriptions, n.Channels, n.UpMs, n.SilentMs,
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if c.Watch && run.Terminal(os.Stdout) {
		_, _ = fmt.Fprint(to, "\033[H\033[2J") // begin at the top of an empty screen
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ROLE\tID\tREGION\tSTATE\tCONNS\tCAPACITY\tCHANNELS\tUP\tHEARD\tADDRESS")
	for _, n := range nodes {
		heard := "never"
		if n.SilentMs != nil {
			heard = (time.Duration(*n.SilentMs) * time.Millisecond).Round(100*time.Millisecond).String() + " ago"
		}
		up := (time.Duration(n.UpMs) * time.Millisecond).Round(time.Second)
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%v\t%s\t%s\n", n.Role, n.Id, n.Region, n.State, n.Conns, n.Capacity, n.Channels, up, heard, n.Address)
	}
	return w.Flush()
}
