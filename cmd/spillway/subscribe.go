package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spillway-io/spillway/gateway/client"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type subscribeCmd struct {
	Edge      string   `help:"WebSocket URL of an edge." default:"ws://localhost:8400/v1/ws" env:"SPILLWAY_EDGE"`
	Channels  []string `arg:"" name:"channel" help:"Channels."`
	Since     string   `help:"Begin after this position, EPOCH:OFFSET." placeholder:"EPOCH:OFFSET"`
	Last      uint32   `help:"Begin with the newest N events." placeholder:"N"`
	TokenFile string   `help:"File with the token." type:"path"`
	JSON      bool     `help:"Print one JSON object a line." name:"json"`
}

func (c *subscribeCmd) Run(e *env) error {
	var options []client.SubscribeOption
	if c.Since != "" {
		epoch, offset, ok := strings.Cut(c.Since, ":")
		n, err := strconv.ParseUint(offset, 10, 53)
		if !ok || err != nil {
			return run.Usagef("--since: %q is not EPOCH:OFFSET", c.Since)
		}
		options = append(options, client.Since(epoch, n))
	}
	if c.Last > 0 {
		if c.Since != "" {
			return run.Usagef("--since and --last exclude each other")
		}
		options = append(options, client.Last(c.Last))
	}
	settings := []client.Option{client.WithName("spillway-cli"), client.WithOnState(c.state)}
	if c.TokenFile != "" {
		settings = append(settings, client.WithToken(func(context.Context) (string, error) {
			return config.Secret("--token-file", c.TokenFile)
		}))
	}
	conn, err := client.New(c.Edge, settings...)
	if err != nil {
		return run.Usagef("%v", err)
	}
	defer conn.Close()
	out := bufio.NewWriter(os.Stdout)
	ended := make(chan error, len(c.Channels))
	for _, channel := range c.Channels {
		if _, err := conn.Subscribe(channel, c.handler(channel, out, ended), options...); err != nil {
			return run.Usagef("%v", err)
		}
	}
	if err := conn.Start(); err != nil {
		return err
	}
	for range c.Channels {
		select {
		case <-e.ctx.Done():
			return nil
		case err := <-ended:
			fmt.Fprintf(os.Stderr, "ended: %v\n", err)
		}
	}
	return fmt.Errorf("no channel is left")
}

func (c *subscribeCmd) state(s client.StateChange) {
	if s.Err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", strings.ToLower(s.To.String()), s.Err)
	}
}

func (c *subscribeCmd) handler(channel string, out *bufio.Writer, ended chan<- error) client.Handler {
	return client.Handler{
		OnSubscribed: func(s client.Subscribed) {
			if s.Pending {
				fmt.Fprintf(os.Stderr, "%s: pending\n", channel)
				return
			}
			fmt.Fprintf(os.Stderr, "%s: subscribed at %s:%d, head %d, recovered %v\n", channel, s.Epoch, s.Offset, s.Head, s.Recovered)
		},
		OnEvent: func(ev client.Event) {
			c.print(out, ev)
			out.Flush()
		},
		OnGap: func(g client.Gap) {
			fmt.Fprintf(os.Stderr, "%s: gap up to %s:%d (%s)\n", channel, g.Epoch, g.Offset, g.Reason)
		},
		OnError:        func(err error) { fmt.Fprintf(os.Stderr, "%s: %v\n", channel, err) },
		OnUnsubscribed: func(err error) { ended <- fmt.Errorf("%s: %w", channel, err) },
	}
}

func (c *subscribeCmd) print(out *bufio.Writer, ev client.Event) {
	if !c.JSON {
		fmt.Fprintf(out, "%s %d %s\n", ev.Channel, ev.Offset, shown(ev.Data, ev.Binary))
		return
	}
	writeEvent(out, ev.Channel, ev.Epoch, ev.Offset, uint64(ev.Time.UnixMilli()), ev.From, ev.Meta, ev.Data, ev.Binary)
}

// shown is data for a person.
func shown(data []byte, binary bool) string {
	if binary {
		return fmt.Sprintf("(%d bytes)", len(data))
	}
	return string(data)
}

// writeEvent prints one event as a JSON object, its data as it was published.
func writeEvent(out *bufio.Writer, channel, epoch string, offset, timeMS uint64, from string, meta map[string]string, data []byte, binary bool) {
	o := map[string]any{"channel": channel, "epoch": epoch, "offset": offset, "time_ms": timeMS}
	if binary {
		o["data_b64"] = data
	} else {
		o["data"] = json.RawMessage(data)
	}
	if from != "" {
		o["from"] = from
	}
	if len(meta) > 0 {
		o["meta"] = meta
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(o)
}
