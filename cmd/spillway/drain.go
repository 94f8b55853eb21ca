package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type drainCmd struct {
	remote
	Node     string        `arg:"" help:"Edge."`
	Deadline time.Duration `help:"From now to the end of the edge; default: its own setting." placeholder:"25s"`
	DryRun   bool          `help:"Say what it would take, and do nothing."`
	Detach   bool          `help:"Do not wait for the end."`
	JSON     bool          `help:"Print one JSON object a line." name:"json"`
}

// Run lets an edge move its clients to the others and leave.
func (c *drainCmd) Run(e *env) error {
	deadline, err := millisFlag("--deadline", c.Deadline)
	if err != nil {
		return err
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewAdminServiceClient(conn)
	ctx, cancel := context.WithTimeout(e.ctx, callTime)
	defer cancel()
	plan, err := client.DrainNode(ctx, &routerv1.DrainNodeRequest{Node: c.Node, DeadlineMs: deadline, DryRun: c.DryRun})
	if err != nil {
		return c.plain(err)
	}
	if err := c.print(os.Stdout, plan); err != nil || c.DryRun || c.Detach {
		return err
	}
	f := follower{remote: &c.remote, client: client, json: c.JSON, out: os.Stdout}
	return f.follow(e.ctx, plan.GetOperation())
}

// millisFlag is a duration as requests have it.
func millisFlag(flag string, d time.Duration) (uint32, error) {
	if d < 0 || d.Milliseconds() > math.MaxUint32 || d != 0 && d < time.Millisecond {
		return 0, run.Usagef("%s: %v: must be above 0", flag, d)
	}
	return uint32(d.Milliseconds()), nil
}

// drainLine is what is known beforehand, in --json.
type drainLine struct {
	Operation string  `json:"operation,omitempty"`
	Node      string  `json:"node"`
	Conns     uint64  `json:"conns"`
	Headroom  uint64  `json:"headroom"`
	PerSecond float64 `json:"per_second"`
	PlannedMS uint32  `json:"planned_ms"`
	Message   string  `json:"message,omitempty"`
}

func (c *drainCmd) print(to io.Writer, p *routerv1.DrainNodeResponse) error {
	if c.JSON {
		return json.NewEncoder(to).Encode(drainLine{
			p.GetOperation(), c.Node, p.GetConns(), p.GetHeadroom(), p.GetPerSecond(), p.GetPlannedMs(), p.GetMessage(),
		})
	}
	_, err := fmt.Fprintf(to, "%s has %d clients; the other edges of its region have room for %d and take %.0f a second: %v at least\n",
		c.Node, p.GetConns(), p.GetHeadroom(), p.GetPerSecond(), millis(p.GetPlannedMs()).Round(100*time.Millisecond))
	if err == nil && p.GetMessage() != "" {
		_, err = fmt.Fprintln(to, p.GetMessage())
	}
	if err == nil && c.Detach && !c.DryRun {
		_, err = fmt.Fprintln(to, "operation", p.GetOperation())
	}
	return err
}

type undrainCmd struct {
	remote
	Node string `arg:"" help:"Edge."`
	JSON bool   `help:"Print one JSON object." name:"json"`
}

// undrainLine is what was done, in --json.
type undrainLine struct {
	Node      string `json:"node"`
	Operation string `json:"operation"`
}

// Run makes an edge serve again.
func (c *undrainCmd) Run(e *env) error {
	var operation string
	err := c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		answer, err := client.UndrainNode(ctx, &routerv1.UndrainNodeRequest{Node: c.Node})
		operation = answer.GetOperation()
		return err
	})
	if err != nil {
		return err
	}
	return told(c.JSON, undrainLine{c.Node, operation}, "%s serves again: operation %s is aborted", c.Node, operation)
}
