package main

import (
	"bufio"
	"context"
	"os"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type historyCmd struct {
	remote
	Channel string `arg:"" help:"Channel."`
	Limit   uint32 `help:"Most events; 0: all there are." default:"100"`
	Since   string `help:"Only after this position; with --reverse: before it." placeholder:"EPOCH:OFFSET"`
	Reverse bool   `help:"Newest first."`
	JSON    bool   `help:"Print one JSON object a line." name:"json"`
}

// pageEvents is what a router gives at a time.
const pageEvents = 1000

// Run prints events, page by page.
func (c *historyCmd) Run(e *env) error {
	if err := wire.CheckChannel(c.Channel); err != nil {
		return run.Usagef("%v", err)
	}
	ask := &routerv1.ReadHistoryRequest{Channel: c.Channel, Reverse: c.Reverse}
	if c.Since != "" {
		epoch, offset, err := position(c.Since)
		if err != nil {
			return err
		}
		ask.Epoch, ask.Offset = epoch, &offset
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewHistoryServiceClient(conn)
	out := bufio.NewWriter(os.Stdout)
	for left := c.Limit; ; {
		if ask.Limit = pageEvents; c.Limit > 0 {
			ask.Limit = min(left, pageEvents)
		}
		page, err := c.page(e.ctx, client, ask, out)
		if err != nil {
			return err
		}
		n := len(page.GetEvents())
		if left -= min(left, uint32(n)); !page.GetMore() || n == 0 || c.Limit > 0 && left == 0 {
			return nil
		}
		last := page.GetEvents()[n-1].GetOffset()
		ask.Epoch, ask.Offset = page.GetEpoch(), &last
	}
}

func (c *historyCmd) page(ctx context.Context, client routerv1.HistoryServiceClient, ask *routerv1.ReadHistoryRequest, out *bufio.Writer) (*routerv1.ReadHistoryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	page, err := client.ReadHistory(ctx, ask)
	if err != nil {
		return nil, c.plain(err)
	}
	for _, h := range page.GetEvents() {
		ev := event{
			channel: page.GetChannel(), epoch: page.GetEpoch(), offset: h.GetOffset(), timeMS: h.GetTimeMs(),
			from: h.GetFrom(), meta: h.GetMeta(), data: []byte(h.GetJson()),
		}
		if b, ok := h.GetData().(*routerv1.HistoryEvent_Binary); ok {
			ev.data, ev.binary = b.Binary, true
		}
		if err := printEvent(out, ev, c.JSON); err != nil {
			return nil, err
		}
	}
	return page, out.Flush()
}
