package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spillway-io/spillway/gateway/client"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type subscribeCmd struct {
	Edge      string   `help:"WebSocket URL of an edge." default:"ws://localhost:8400/v1/ws" env:"SPILLWAY_EDGE" placeholder:"URL"`
	Channels  []string `arg:"" name:"channel" help:"Channels."`
	Since     string   `help:"Begin after this position." placeholder:"EPOCH:OFFSET"`
	Last      uint32   `help:"Begin with the newest N events." placeholder:"N"`
	TokenFile string   `help:"File with a token; read again whenever one is needed." placeholder:"FILE" type:"path"`
	JSON      bool     `help:"Print one JSON object a line." name:"json"`
}

// Run prints events until it is interrupted, or no channel is left.
func (c *subscribeCmd) Run(e *env) error {
	start, err := c.start()
	if err != nil {
		return err
	}
	ended := make(chan error, len(c.Channels)+1)
	settings := []client.Option{client.WithName("spillway-cli/" + run.Version()), client.WithOnState(func(s client.StateChange) { c.state(s, ended) })}
	if c.TokenFile != "" {
		if _, err := config.Secret("--token-file", c.TokenFile); err != nil {
			return run.Usagef("%v", err)
		}
		settings = append(settings, client.WithToken(func(context.Context) (string, error) {
			return config.Secret("--token-file", c.TokenFile)
		}))
	}
	session, err := client.New(c.Edge, settings...)
	if err != nil {
		return run.Usagef("%v", err)
	}
	defer session.Close()
	for _, channel := range c.Channels {
		if _, err := session.Subscribe(channel, c.handler(channel, ended), start...); err != nil {
			return run.Usagef("%s: %v", channel, err)
		}
	}
	if err := session.Start(); err != nil {
		return err
	}
	for left := len(c.Channels); left > 0; left-- {
		select {
		case <-e.ctx.Done():
			return nil
		case err := <-ended:
			if len(c.Channels) == 1 || errors.Is(err, errStopped) {
				return err
			}
			say("%v", err)
		}
	}
	return errNoChannel
}

func (c *subscribeCmd) start() ([]client.SubscribeOption, error) {
	switch {
	case c.Since != "" && c.Last > 0:
		return nil, run.Usagef("--since and --last do not go together")
	case c.Since != "" && len(c.Channels) > 1:
		return nil, run.Usagef("--since is a position of one channel")
	case c.Since != "":
		epoch, offset, err := position(c.Since)
		if err != nil {
			return nil, err
		}
		return []client.SubscribeOption{client.Since(epoch, offset)}, nil
	case c.Last > 0:
		return []client.SubscribeOption{client.Last(c.Last)}, nil
	}
	return nil, nil
}

// errStopped: the server wants this client not to come back, or there is no token.
var errStopped = errors.New("stopped")

func (c *subscribeCmd) state(s client.StateChange, ended chan<- error) {
	switch {
	case errors.Is(s.Err, client.ErrClosed):
	case s.To == client.Disconnected && s.Err != nil:
		select {
		case ended <- fmt.Errorf("%w: %w", errStopped, s.Err):
		default:
		}
	case s.Err != nil:
		say("%s: %v", strings.ToLower(s.To.String()), s.Err)
	}
}

// handler prints events on standard output and what is known about them on
// standard error. The SDK runs one callback at a time.
func (c *subscribeCmd) handler(channel string, ended chan<- error) client.Handler {
	return client.Handler{
		OnSubscribed: func(s client.Subscribed) {
			switch {
			case s.Pending:
				say("%s: subscribed; history cannot be read now, events follow later", channel)
			case s.Recovered:
				say("%s: subscribed, recovered from %s:%d, head is %d", channel, s.Epoch, s.Offset, s.Head)
			default:
				say("%s: subscribed at %s:%d", channel, s.Epoch, s.Offset)
			}
		},
		OnEvent: func(ev client.Event) {
			if err := printEvent(os.Stdout, event{
				channel: ev.Channel, epoch: ev.Epoch, offset: ev.Offset, timeMS: uint64(ev.Time.UnixMilli()),
				from: ev.From, meta: ev.Meta, data: ev.Data, binary: ev.Binary,
			}, c.JSON); err != nil {
				select {
				case ended <- fmt.Errorf("%w: %w", errStopped, err):
				default:
				}
			}
		},
		OnGap: func(g client.Gap) {
			say("%s: events from %s:%d up to %s:%d are lost (%s)", channel, g.From.Epoch, g.From.Offset, g.Epoch, g.Offset, g.Reason)
		},
		OnError:        func(err error) { say("%s: %v; trying again", channel, err) },
		OnUnsubscribed: func(err error) { ended <- fmt.Errorf("%s: %w", channel, err) },
	}
}

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stderr, format+"\n", args...) }
