package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type publishCmd struct {
	remote
	Channel string            `arg:"" help:"Channel."`
	Data    string            `arg:"" help:"JSON; - reads standard input, all of it as one event."`
	Lines   bool              `help:"With -: one JSON document a line, in order."`
	Text    bool              `help:"The data is text, not JSON: it is published as a JSON string."`
	Key     string            `help:"Idempotency key: a repeat is harmless."`
	Meta    map[string]string `help:"Delivered with the event." placeholder:"K=V"`
	JSON    bool              `help:"Print one JSON object a line." name:"json"`
}

// maxInputBytes bounds what is read of one event: routers take half of that.
const maxInputBytes = 1 << 20

// Run publishes and prints where the events are.
func (c *publishCmd) Run(e *env) error {
	switch {
	case c.Lines && c.Data != "-":
		return run.Usagef("--lines reads standard input: it needs - as DATA")
	case c.Lines && c.Key != "":
		return run.Usagef("--key names one event, it does not go with --lines")
	}
	if err := wire.CheckChannel(c.Channel); err != nil {
		return run.Usagef("%v", err)
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := routerv1.NewPublisherServiceClient(conn)
	if c.Lines {
		return c.lines(e.ctx, client, os.Stdin)
	}
	return c.one(e.ctx, client)
}

func (c *publishCmd) one(ctx context.Context, client routerv1.PublisherServiceClient) error {
	data, err := []byte(c.Data), error(nil)
	if c.Data == "-" {
		if data, err = io.ReadAll(io.LimitReader(os.Stdin, maxInputBytes+1)); err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		if len(data) > maxInputBytes {
			return run.Usagef("standard input has more than %d bytes", maxInputBytes)
		}
	}
	p, err := c.publication(data)
	if err != nil {
		return run.Usagef("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := client.Publish(ctx, &routerv1.PublishRequest{Publication: p})
	if err != nil {
		return c.plain(err)
	}
	return c.print(os.Stdout, answer.GetPlaced())
}

// publication checks the data here, so that a mistake is told before anything is sent.
func (c *publishCmd) publication(data []byte) (*routerv1.Publication, error) {
	if c.Text {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(string(bytes.TrimSuffix(data, []byte("\n")))); err != nil {
			return nil, err
		}
		data = text.Bytes()
	}
	compact, err := wire.CompactJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%w; for text use --text", err)
	}
	return &routerv1.Publication{
		Channel: c.Channel, Data: &routerv1.Publication_Json{Json: string(compact)}, Meta: c.Meta, Key: c.Key,
	}, nil
}

// placedLine is one event in --json.
type placedLine struct {
	Channel    string `json:"channel"`
	Epoch      string `json:"epoch"`
	Offset     uint64 `json:"offset"`
	Repeat     bool   `json:"repeat,omitempty"`
	Durability string `json:"durability,omitempty"`
}

func (c *publishCmd) print(to io.Writer, p *routerv1.Placed) error {
	if c.JSON {
		return json.NewEncoder(to).Encode(placedLine{p.GetChannel(), p.GetEpoch(), p.GetOffset(), p.GetRepeat(), wire.DurabilityWord(p.GetDurability())})
	}
	note := ""
	if p.GetRepeat() {
		note = " (repeat: it was there already)"
	}
	_, err := fmt.Fprintf(to, "%s %s:%d%s\n", p.GetChannel(), p.GetEpoch(), p.GetOffset(), note)
	return err
}
