package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type evacuateCmd struct {
	remote
	Region string        `required:"" help:"Region to empty."`
	Window time.Duration `help:"Time over which its clients move." default:"60s"`
	Hook   []string      `help:"URL that is POSTed to at each step: before, quarter, half, done, aborted, returned." placeholder:"URL" sep:"none"`
	DryRun bool          `help:"Show the pre-check, and do nothing."`
	Yes    bool          `help:"Do not ask." short:"y"`
	Force  bool          `help:"Begin although the pre-check says no, or a first hook fails."`
	Return bool          `help:"Take the region into service again instead."`
	Detach bool          `help:"Do not wait for the end."`
	JSON   bool          `help:"Print one JSON object a line." name:"json"`
}

var errNotAsked = errors.New("nothing was done")

// Run empties a region into the others.
func (c *evacuateCmd) Run(e *env) error {
	window, err := millisFlag("--window", c.Window)
	if err != nil {
		return err
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewAdminServiceClient(conn)
	call := func(request *routerv1.EvacuateRequest) (*routerv1.EvacuateResponse, error) {
		ctx, cancel := context.WithTimeout(e.ctx, callTime)
		defer cancel()
		request.Region = c.Region
		answer, err := client.Evacuate(ctx, request)
		if err != nil {
			return nil, c.plain(err)
		}
		return answer, nil
	}
	if c.Return {
		back, err := call(&routerv1.EvacuateRequest{Back: true})
		if err != nil {
			return err
		}
		return told(c.JSON, returnLine{c.Region, back.GetOperation()}, "region %s serves again: operation %s is over", c.Region, back.GetOperation())
	}
	check, err := call(&routerv1.EvacuateRequest{WindowMs: window, DryRun: true})
	if err != nil {
		return err
	}
	if err := c.print(os.Stdout, check); err != nil {
		return err
	}
	switch {
	case !check.GetFits() && !c.Force:
		return fmt.Errorf("%s; --force begins all the same", check.GetMessage())
	case c.DryRun:
		return nil
	}
	if err := c.ask(os.Stdin, os.Stderr); err != nil {
		return err
	}
	begun, err := call(&routerv1.EvacuateRequest{WindowMs: window, Force: c.Force, HookUrls: c.Hook})
	if err != nil {
		return err
	}
	if c.Detach {
		if !c.JSON {
			_, err = fmt.Println("operation", begun.GetOperation())
		}
		return err
	}
	f := follower{remote: &c.remote, client: client, json: c.JSON, out: os.Stdout}
	return f.follow(e.ctx, begun.GetOperation())
}

// ask wants a yes from a person.
func (c *evacuateCmd) ask(in *os.File, out io.Writer) error {
	if c.Yes {
		return nil
	}
	if !run.Terminal(in) {
		return run.Usagef("there is no terminal to ask on; --yes begins without asking")
	}
	_, _ = fmt.Fprintf(out, "Empty region %s over %v? [y/N] ", c.Region, c.Window)
	line, err := bufio.NewReader(in).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); err != nil || answer != "y" && answer != "yes" {
		return errNotAsked
	}
	return nil
}

// returnLine is the end of an evacuation, in --json.
type returnLine struct {
	Region    string `json:"region"`
	Operation string `json:"operation"`
}

// checkLine is the pre-check in --json.
type checkLine struct {
	Region          string  `json:"region"`
	Conns           uint64  `json:"conns"`
	Critical        uint64  `json:"critical"`
	Headroom        uint64  `json:"headroom"`
	Reserved        uint64  `json:"reserved"`
	NeededPerSecond float64 `json:"needed_per_second"`
	PerSecond       float64 `json:"per_second"`
	Fits            bool    `json:"fits"`
	Message         string  `json:"message,omitempty"`
}

func (c *evacuateCmd) print(to io.Writer, k *routerv1.EvacuateResponse) error {
	if c.JSON {
		return json.NewEncoder(to).Encode(checkLine{
			c.Region, k.GetConns(), k.GetCritical(), k.GetHeadroom(), k.GetReserved(), k.GetNeededPerSecond(), k.GetPerSecond(), k.GetFits(), k.GetMessage(),
		})
	}
	verdict := "it fits"
	if !k.GetFits() {
		verdict = "it does not fit: " + k.GetMessage()
	}
	_, err := fmt.Fprintf(to, `region %s: %d clients, %d of them critical
the other regions: room for %d, %d of it for critical clients only
a window of %v needs %.0f a second, the other regions take %.0f
%s
`, c.Region, k.GetConns(), k.GetCritical(), k.GetHeadroom(), k.GetReserved(), c.Window, k.GetNeededPerSecond(), k.GetPerSecond(), verdict)
	return err
}
