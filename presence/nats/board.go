// Package nats says and hears load figures on the bus: presence.Board over a
// NATS connection. A figure is one small message a second and member on
// <prefix>.load.<region>; what is lost is not repeated, the next comes soon.
package nats

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
)

// queue bounds the figures that wait to be taken; past it they are dropped.
const queue = 4096

// Board implements presence.Board. The connection is the caller's.
type Board struct {
	conn     *nats.Conn
	subject  string
	all      string
	interval time.Duration
	log      *slog.Logger
}

var _ presence.Board = (*Board)(nil)

// NewBoard makes one for a member of region; interval 0 is one second.
func NewBoard(conn *nats.Conn, prefix, region string, interval time.Duration, log *slog.Logger) *Board {
	if interval == 0 {
		interval = time.Second
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Board{conn: conn, subject: prefix + ".load." + token(region), all: prefix + ".load.*", interval: interval, log: log}
}

// token makes one subject token of a label.
func token(label string) string {
	b := []byte(label)
	for i, c := range b {
		if c <= ' ' || c == '.' || c == '*' || c == '>' || c == 0x7f {
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "_"
	}
	return string(b)
}

// Run implements presence.Board.
func (b *Board) Run(ctx context.Context, own func() *presence.Figure, heard func(*presence.Figure), connected func(bool)) error {
	in := make(chan *nats.Msg, queue)
	sub, err := b.conn.ChanSubscribe(b.all, in)
	if err != nil {
		return fmt.Errorf("subscribe to load figures: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ticker := time.NewTicker(b.interval)
	defer ticker.Stop()
	b.say(own(), connected)
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-in:
			f := new(presence.Figure)
			if err := proto.Unmarshal(msg.Data, f); err != nil {
				b.log.Warn("load figure is not readable", "err", err)
				continue
			}
			heard(f)
		case <-ticker.C:
			b.say(own(), connected)
		}
	}
}

// say publishes one figure and tells the view how the connection is. Figures are
// not worth keeping for later: without a connection they are let go.
func (b *Board) say(f *presence.Figure, connected func(bool)) {
	up := b.conn.IsConnected()
	connected(up)
	if !up {
		return
	}
	data, err := proto.Marshal(f)
	if err == nil {
		err = b.conn.Publish(b.subject, data)
	}
	if err != nil {
		b.log.Debug("say load figure", "err", err)
	}
}
