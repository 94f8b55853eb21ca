package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type historyCmd struct {
	remote
	Channel string `arg:"" help:"Channel."`
	Limit   uint32 `help:"Most events; 0: all there are." default:"100"`
	Since   string `help:"After this position, EPOCH:OFFSET." placeholder:"EPOCH:OFFSET"`
	Reverse bool   `help:"Newest first."`
	JSON    bool   `help:"Print one JSON object a line." name:"json"`
}

func (c *historyCmd) Run(e *env) error {
	req := &routerv1.ReadHistoryRequest{Channel: c.Channel, Reverse: c.Reverse}
	if c.Since != "" {
		epoch, offset, ok := strings.Cut(c.Since, ":")
		n, err := strconv.ParseUint(offset, 10, 53)
		if !ok || err != nil {
			return run.Usagef("--since: %q is not EPOCH:OFFSET", c.Since)
		}
		req.Epoch, req.Offset = epoch, &n
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewHistoryServiceClient(conn)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for left := c.Limit; ; {
		req.Limit = 1000
		if c.Limit > 0 {
			req.Limit = min(left, 1000)
		}
		ctx, cancel := context.WithTimeout(e.ctx, callTime)
		page, err := client.ReadHistory(ctx, req)
		cancel()
		if err != nil {
			return plain(err)
		}
		for _, ev := range page.Events {
			c.print(out, page, ev)
		}
		left -= min(left, uint32(len(page.Events)))
		if !page.More || len(page.Events) == 0 || c.Limit > 0 && left == 0 {
			return nil
		}
		last := page.Events[len(page.Events)-1].Offset
		req.Epoch, req.Offset = page.Epoch, &last
	}
}

func (c *historyCmd) print(out *bufio.Writer, page *routerv1.ReadHistoryResponse, ev *routerv1.HistoryEvent) {
	data, binary := []byte(ev.GetJson()), false
	if b, ok := ev.Data.(*routerv1.HistoryEvent_Binary); ok {
		data, binary = b.Binary, true
	}
	if c.JSON {
		writeEvent(out, page.Channel, page.Epoch, ev.Offset, ev.TimeMs, ev.From, ev.Meta, data, binary)
		return
	}
	fmt.Fprintf(out, "%s:%d %s %s\n", page.Epoch, ev.Offset, time.UnixMilli(int64(ev.TimeMs)).Format(time.RFC3339), shown(data, binary))
}

type nodesCmd struct {
	remote
	JSON  bool `help:"Print one JSON object a line." name:"json"`
	Watch bool `help:"Once a second, until interrupted."`
}

func (c *nodesCmd) Run(e *env) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewAdminServiceClient(conn)
	for {
		ctx, cancel := context.WithTimeout(e.ctx, callTime)
		resp, err := client.ListNodes(ctx, &routerv1.ListNodesRequest{})
		cancel()
		if err != nil {
			return plain(err)
		}
		if c.Watch && !c.JSON && run.Terminal(os.Stdout) {
			fmt.Print("\033[H\033[2J")
		}
		c.print(resp.Nodes)
		if !c.Watch {
			return nil
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-e.ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (c *nodesCmd) print(nodes []*routerv1.Node) {
	if c.JSON {
		enc := json.NewEncoder(os.Stdout)
		for _, n := range nodes {
			_ = enc.Encode(map[string]any{
				"id": n.Id, "role": n.Role, "region": n.Region, "zone": n.Zone, "address": n.Address, "state": n.State,
				"version": n.Version, "capacity": n.Capacity, "conns": n.Conns, "subscriptions": n.Subscriptions,
				"channels": n.Channels, "up_ms": n.UpMs, "silent_ms": n.SilentMs,
			})
		}
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROLE\tID\tREGION\tSTATE\tCONNS\tCAPACITY\tCHANNELS\tUP\tADDRESS")
	for _, n := range nodes {
		up := time.Duration(n.UpMs) * time.Millisecond
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", n.Role, n.Id, n.Region, n.State, n.Conns, n.Capacity, n.Channels, up.Round(time.Second), n.Address)
	}
	w.Flush()
}
