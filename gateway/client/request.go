package client

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-io/spillway/gateway/client/machine"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Calls wait for a connection if there is none, until ctx is done. Their errors:
// *Error from the server, ErrNotConnected, ErrClosed, ErrTooManyCalls, why the
// client ended, the error of ctx, and what each says itself.

// PublishOption refines a publish.
type PublishOption func(*clientv1.Publish)

// Key makes a repeat harmless: unique within channel and user. A publish with a key
// is sent again by itself if the connection ends before the answer.
func Key(key string) PublishOption { return func(p *clientv1.Publish) { p.Key = key } }

// Meta travels with the event; at most 4 KiB.
func Meta(meta map[string]string) PublishOption { return func(p *clientv1.Publish) { p.Meta = meta } }

// Binary: data is any bytes instead of JSON text.
func Binary() PublishOption { return func(p *clientv1.Publish) { p.Binary = true } }

// Publish sends one event (data is JSON text unless Binary) and returns its position.
// Besides the errors of all calls: data that is not JSON, a name or key that cannot
// be, ErrOutcomeUnknown for a publish without key that was cut off. A ctx that ends
// before the answer leaves the outcome unknown too.
func (c *Client) Publish(ctx context.Context, channel string, data []byte, opts ...PublishOption) (Position, error) {
	p := &clientv1.Publish{Channel: channel, Data: data}
	for _, o := range opts {
		o(p)
	}
	if err := checkPublish(p); err != nil {
		return Position{}, err
	}
	reply, err := c.call(ctx, p.Key != "", &clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Publish{Publish: p}})
	if err != nil {
		return Position{}, err
	}
	done := reply.GetPublished()
	if done == nil {
		return Position{}, errOddReply(reply)
	}
	return Position{Epoch: done.Epoch, Offset: done.Offset}, nil
}

func checkPublish(p *clientv1.Publish) (err error) {
	if err = wire.CheckChannel(p.Channel); err != nil {
		return err
	}
	if err = wire.CheckKey(p.Key); err != nil {
		return err
	}
	if !p.Binary {
		p.Data, err = wire.CompactJSON(p.Data)
	}
	return err
}

// HistoryOption says which events History reads.
type HistoryOption func(*clientv1.History)

// After reads what follows a position, oldest first.
func After(p Position) HistoryOption {
	return func(h *clientv1.History) { h.Epoch, h.Offset, h.Reverse = p.Epoch, &p.Offset, false }
}

// Before reads what precedes a position, newest first.
func Before(p Position) HistoryOption {
	return func(h *clientv1.History) { h.Epoch, h.Offset, h.Reverse = p.Epoch, &p.Offset, true }
}

// Newest reads from the newest event backwards.
func Newest() HistoryOption {
	return func(h *clientv1.History) { h.Offset, h.Reverse = nil, true }
}

// Limit is the most events to read; 100 without it.
func Limit(n uint32) HistoryOption { return func(h *clientv1.History) { h.Limit = n } }

// HistoryPage is a part of a channel's history.
type HistoryPage struct {
	Epoch  string
	Events []Event
	More   bool // ask again from the last event
}

// History reads events of a channel, the oldest first unless the options say
// otherwise.
func (c *Client) History(ctx context.Context, channel string, opts ...HistoryOption) (HistoryPage, error) {
	if err := wire.CheckChannel(channel); err != nil {
		return HistoryPage{}, err
	}
	h := &clientv1.History{Channel: channel, Limit: 100}
	for _, o := range opts {
		o(h)
	}
	reply, err := c.call(ctx, true, &clientv1.ClientFrame{Frame: &clientv1.ClientFrame_History{History: h}})
	if err != nil {
		return HistoryPage{}, err
	}
	r := reply.GetHistory()
	if r == nil {
		return HistoryPage{}, errOddReply(reply)
	}
	page := HistoryPage{Epoch: r.Epoch, More: r.More, Events: make([]Event, len(r.Events))}
	for i, e := range r.Events {
		page.Events[i] = machine.NewEvent(channel, r.Epoch, e)
	}
	return page, nil
}

// Ping asks the edge for a sign of life and returns how long it took.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := c.call(ctx, true, &clientv1.ClientFrame{Frame: &clientv1.ClientFrame_Ping{Ping: &clientv1.Ping{}}})
	return time.Since(start), err
}

func (c *Client) call(ctx context.Context, resend bool, f *clientv1.ClientFrame) (*clientv1.ServerFrame, error) {
	k := &machine.Call{Frame: f, Resend: resend, Done: make(chan struct{})}
	taken := false
	c.step(func(m *machine.Machine, _ time.Time) {
		taken = true
		m.Call(k)
	})
	if !taken {
		return nil, ErrClosed
	}
	select {
	case <-k.Done:
		return k.Reply, k.Err
	case <-ctx.Done():
		c.step(func(m *machine.Machine, _ time.Time) { m.GiveUp(k) })
		return nil, ctx.Err()
	}
}

func errOddReply(f *clientv1.ServerFrame) error {
	return fmt.Errorf("the server answered with another kind of frame: %T", f.Frame)
}
