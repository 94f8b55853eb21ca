package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	"github.com/spillway-io/spillway/gateway/client"
)

// user is an application with the Go SDK that publishes and reads history by edges. The
// SDK repeats by itself what a connection took with it. Owned by its goroutine.
type user struct {
	tr     *trial
	name   string
	rng    *rand.Rand
	number int
}

const (
	userTick = 40 * time.Millisecond
	userTime = 8 * time.Second
)

func (u *user) run(ctx context.Context) error {
	urls := u.tr.urls(u.rng)
	c, err := client.New(urls[0], client.WithURLs(urls[1:]...))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Start(); err != nil {
		return err
	}
	tick := time.NewTicker(userTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		channel := u.tr.channel(u.rng)
		if u.rng.IntN(2) == 0 {
			u.publish(c, channel)
		} else if namespace(channel) != loose {
			u.history(c, channel)
		}
	}
}

func (u *user) publish(c *client.Client, channel string) {
	u.number++
	value := fmt.Sprintf("%s-%d", u.name, u.number)
	p := ledger.Publish{By: u.name, Via: "an edge", Channel: channel, Value: value, Key: value, Call: u.tr.rec.now()}
	data, err := json.Marshal(payload{Value: value})
	if err != nil {
		panic(err) // strings only
	}
	ctx, cancel := context.WithTimeout(context.Background(), userTime)
	defer cancel()
	at, err := c.Publish(ctx, channel, data, client.Key(p.Key))
	p.Return = u.tr.rec.now()
	if err == nil {
		p.Outcome, p.At = ledger.Acked, ledger.Position{Epoch: at.Epoch, Offset: at.Offset}
	} else {
		p.Why = err.Error()
		if told := (*client.Error)(nil); errors.As(err, &told) && told.Code == "bad_request" {
			u.tr.t.Errorf("%s: %v", u.name, err)
		}
	}
	u.tr.rec.published(p)
}

// history reads the newest events. An edge does not tell the head: it is that of the
// first event.
func (u *user) history(c *client.Client, channel string) {
	ctx, cancel := context.WithTimeout(context.Background(), userTime)
	defer cancel()
	page := ledger.Read{By: u.name, Via: "an edge", Channel: channel, Reverse: true, Call: u.tr.rec.now()}
	got, err := c.History(ctx, channel, client.Newest(), client.Limit(uint32(1+u.rng.IntN(pageMost))))
	if err != nil || len(got.Events) == 0 {
		return
	}
	page.Return, page.Epoch, page.More = u.tr.rec.now(), got.Epoch, got.More
	for _, e := range got.Events {
		page.Events = append(page.Events, ledger.Event{Offset: e.Offset, Value: valueOf(e.Data)})
	}
	page.Head = page.Events[0].Offset
	if !page.More {
		page.First = page.Events[len(page.Events)-1].Offset
	}
	u.tr.rec.read(page)
}
