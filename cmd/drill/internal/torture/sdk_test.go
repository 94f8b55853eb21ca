package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	"github.com/spillway-io/spillway/gateway/client"
)

// sdkWatcher is an application with the Go SDK that follows all channels. Now and then
// it closes its client and a new one goes on from its positions.
type sdkWatcher struct {
	tr   *trial
	name string
	rng  *rand.Rand
	stay bool // it never leaves by itself

	streams map[string]*stream
}

const (
	awayMost   = 2 * time.Second
	sessionFor = 6 * time.Second
)

func (w *sdkWatcher) run(ctx context.Context) error {
	w.streams = make(map[string]*stream)
	for {
		c, err := w.open()
		if err != nil {
			return err
		}
		left := w.follow(ctx, c)
		_ = c.Close() // never fails
		if !left {
			return nil
		}
		away := time.NewTimer(time.Duration(w.rng.Int64N(int64(awayMost))))
		select {
		case <-away.C:
		case <-ctx.Done(): // it comes back to catch up
		}
		away.Stop()
	}
}

// follow subscribes to channels as they are made; true: the client leaves, to come back.
func (w *sdkWatcher) follow(ctx context.Context, c *client.Client) (left bool) {
	subscribed := make(map[string]bool)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	session := time.NewTimer(sessionFor/2 + time.Duration(w.rng.Int64N(int64(sessionFor))))
	defer session.Stop()
	for {
		for _, channel := range w.tr.channels.all() {
			if !subscribed[channel] {
				subscribed[channel] = true
				w.subscribe(c, channel)
			}
		}
		select {
		case <-tick.C:
		case <-w.tr.over:
			return false
		case <-session.C:
			if !w.stay && ctx.Err() == nil {
				return true
			}
		}
	}
}

func (w *sdkWatcher) open() (*client.Client, error) {
	urls := w.tr.urls(w.rng)
	c, err := client.New(urls[0], client.WithURLs(urls[1:]...))
	if err != nil {
		return nil, err
	}
	return c, c.Start()
}

func (w *sdkWatcher) subscribe(c *client.Client, channel string) {
	s := w.streams[channel]
	if s == nil {
		s = w.tr.rec.stream(w.name, channel)
		w.streams[channel] = s
	}
	var from []client.SubscribeOption
	if at, known := s.take(c); known {
		from = append(from, client.Since(at.Epoch, at.Offset))
		s.step(c, ledger.Step{Kind: ledger.Away})
	}
	position := func(p client.Position) ledger.Position { return ledger.Position{Epoch: p.Epoch, Offset: p.Offset} }
	_, err := c.Subscribe(channel, client.Handler{
		OnSubscribed: func(e client.Subscribed) {
			if e.Pending {
				s.step(c, ledger.Step{Kind: ledger.Pending})
				return
			}
			s.step(c, ledger.Step{Kind: ledger.Joined, At: position(e.Position), Text: fmt.Sprintf("head %d recovered %v", e.Head, e.Recovered)})
		},
		OnEvent: func(e client.Event) {
			s.step(c, ledger.Step{Kind: ledger.Received, At: position(e.Position), Value: valueOf(e.Data)})
		},
		OnGap: func(g client.Gap) {
			s.step(c, ledger.Step{Kind: ledger.Lost, From: position(g.From), At: position(g.Position), Text: g.Reason})
		},
		OnUnsubscribed: func(err error) { w.tr.t.Errorf("%s: %s: the server ended it: %v", w.name, channel, err) },
	}, from...)
	if err != nil {
		w.tr.t.Errorf("%s: subscribe to %s: %v", w.name, channel, err)
	}
}
