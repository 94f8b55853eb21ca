package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	Data    string            `arg:"" help:"JSON; - reads standard input."`
	Lines   bool              `help:"With -: one JSON document a line, in order."`
	Text    bool              `help:"Data is text: it is published as a JSON string."`
	Key     string            `help:"Idempotency key: a repeat is harmless."`
	Meta    map[string]string `help:"Name=value, delivered with the event."`
	JSON    bool              `help:"Print one JSON object a line." name:"json"`
}

// maxInput bounds one event that is read from standard input.
const maxInput = 1 << 20

func (c *publishCmd) Run(e *env) error {
	switch {
	case c.Lines && c.Data != "-":
		return run.Usagef("--lines needs - as data: it reads standard input")
	case c.Lines && c.Key != "":
		return run.Usagef("--key is for one event, not for --lines")
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
	data := []byte(c.Data)
	if c.Data == "-" {
		if data, err = io.ReadAll(io.LimitReader(os.Stdin, maxInput+1)); err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		if len(data) > maxInput {
			return run.Usagef("standard input is over %d bytes", maxInput)
		}
	}
	p, err := c.publication(data)
	if err != nil {
		return run.Usagef("%v", err)
	}
	ctx, cancel := context.WithTimeout(e.ctx, callTime)
	defer cancel()
	resp, err := client.Publish(ctx, &routerv1.PublishRequest{Publication: p})
	if err != nil {
		return plain(err)
	}
	c.print(resp.Placed)
	return nil
}

func (c *publishCmd) publication(data []byte) (*routerv1.Publication, error) {
	if c.Text {
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(string(data)); err != nil {
			return nil, err
		}
		data = bytes.TrimSpace(buf.Bytes())
	}
	if _, err := wire.CompactJSON(data); err != nil {
		return nil, fmt.Errorf("%w; for text that is not JSON use --text", err)
	}
	return &routerv1.Publication{
		Channel: c.Channel, Data: &routerv1.Publication_Json{Json: string(data)}, Meta: c.Meta, Key: c.Key,
	}, nil
}

func (c *publishCmd) print(p *routerv1.Placed) {
	if c.JSON {
		out, _ := json.Marshal(map[string]any{"channel": p.Channel, "epoch": p.Epoch, "offset": p.Offset, "repeat": p.Repeat})
		fmt.Println(string(out))
		return
	}
	fmt.Printf("%s %s:%d\n", p.Channel, p.Epoch, p.Offset)
}

// lines publishes a line an event over one stream, in order, some at a time. It
// stops at the first failure and says which line it was.
func (c *publishCmd) lines(ctx context.Context, client routerv1.PublisherServiceClient, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.PublishStream(ctx)
	if err != nil {
		return plain(err)
	}
	bar := newProgress()
	defer bar.end()
	const most, mostBytes = 100, 512 << 10
	var batch []*routerv1.Publication
	var at []int
	size, done := 0, 0
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := stream.Send(&routerv1.PublishStreamRequest{Publications: batch}); err != nil && !errors.Is(err, io.EOF) {
			return plain(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("after %d events: %w", done, plain(err))
		}
		for i, r := range resp.Results {
			if f := r.GetFailure(); f != nil {
				return fmt.Errorf("line %d: %s (%d events published)", at[i], f.Message, done)
			}
			if done++; c.JSON {
				c.print(r.GetPlaced())
			}
		}
		bar.show("%d events", done)
		batch, at, size = nil, nil, 0
		return nil
	}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 64<<10), maxInput)
	for n := 1; scanner.Scan(); n++ {
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		p, err := c.publication(line)
		if err != nil {
			if sendErr := send(); sendErr != nil {
				return sendErr
			}
			return run.Usagef("line %d: %v (%d events published)", n, err, done)
		}
		batch, at = append(batch, p), append(at, n)
		if size += len(line); len(batch) == most || size >= mostBytes {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("read standard input: %w", err)
	}
	if err := send(); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return plain(err)
	}
	bar.end()
	if !c.JSON {
		fmt.Printf("%d events\n", done)
	}
	return nil
}
