// Package nats carries what members tell each other over NATS. LoadFigures implements
// presence.LoadFigures: a figure is one small message on <prefix>.load.<region>; what
// is lost is not repeated, since the next one comes soon. Messenger is request-reply to
// one member and broadcasts to all who listen.
//
// Edges and routers have one of each, made in cmd; both call nats.go only.
//
// LoadFigures.Run has no goroutine of its own, and nats.go fills its queue. Messenger.Run
// has one, which hands out answers and which it waits for. Every queue is bounded; what
// finds one full is dropped and counted. All of it is soft state: nothing is repeated.
//
// The connection is the caller's. It should never give up reconnecting
// (nats.MaxReconnects(-1)), and it must echo (no nats.NoEcho), since our own figures
// prove that the bus works. Left out on purpose: events of channels (router/bus and
// gateway/bus), and what any message means.
package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-io/spillway/presence"
)

const (
	// queue bounds the figures that wait to be taken: ten seconds of a cluster of
	// any size, and some.
	queue = 2048
	// maxFigureBytes bounds what is read of one message. An edge's windows are at most
	// twice 24 KiB (they name edges, 255 bytes each); ids and regions are 255. A
	// figure of a quiet edge has about 100 bytes, of a busy one about 1 KiB.
	maxFigureBytes = 64 << 10
)

// LoadFigures implements presence.LoadFigures.
// What a figure says is put together in presence/cluster.go; edges add their windows
// (gateway/load).
type LoadFigures struct {
	conn    *nats.Conn
	subject string
	all     string
	log     *slog.Logger
}

var _ presence.LoadFigures = (*LoadFigures)(nil)

// NewLoadFigures makes one for a member of a region; prefix is that of all subjects of
// the cluster. log may be nil.
func NewLoadFigures(conn *nats.Conn, prefix, region string, log *slog.Logger) *LoadFigures {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &LoadFigures{conn: conn, subject: prefix + ".load." + token(region), all: prefix + ".load.*", log: log}
}

// token makes one subject token of a label; two labels may share one, since the
// figure itself names its region.
func token(label string) string {
	if label == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(".*>$", r) {
			return '_'
		}
		return r
	}, label)
}

// Run implements presence.LoadFigures. It fails only if the connection cannot be used
// at all.
func (b *LoadFigures) Run(ctx context.Context, l presence.Listener) error {
	if b.conn.Opts.NoEcho {
		return errors.New("load figures: the bus connection must not be NoEcho")
	}
	in := make(chan *nats.Msg, queue)
	sub, err := b.conn.ChanSubscribe(b.all, in)
	if err != nil {
		return fmt.Errorf("subscribe to load figures: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is gone
	status := b.conn.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer b.conn.RemoveStatusListener(status)
	timer := time.NewTimer(0)
	defer timer.Stop()
	dropped := 0
	for {
		select {
		case <-ctx.Done():
			b.publish(l) // the last word: what happened since the one before would be known to nobody
			return nil
		case msg := <-in:
			b.take(msg, l)
		case <-status:
			if l.Connected(b.conn.IsConnected()); b.conn.IsConnected() {
				timer.Reset(0) // be heard at once
			}
		case <-timer.C:
			timer.Reset(b.publish(l))
			if n, err := sub.Dropped(); err == nil && n > dropped {
				l.Dropped(presence.DropQueueFull, n-dropped)
				dropped = n
			}
		}
	}
}

func (b *LoadFigures) take(msg *nats.Msg, l presence.Listener) {
	f := new(presence.Figure)
	if len(msg.Data) > maxFigureBytes || proto.Unmarshal(msg.Data, f) != nil || f.Id == "" {
		l.Dropped(presence.DropUnreadable, 1)
		b.log.Debug("load figure is not readable", "bytes", len(msg.Data))
		return
	}
	l.Heard(f)
}

// publish sends one figure and returns the time to the next. Figures are not
// worth keeping for later: without a connection they are let go.
func (b *LoadFigures) publish(l presence.Listener) time.Duration {
	f, next := l.Own()
	up := b.conn.IsConnected()
	l.Connected(up)
	if !up {
		return next
	}
	data, err := proto.Marshal(f)
	if err == nil {
		err = b.conn.Publish(b.subject, data)
	}
	if err != nil {
		b.log.Debug("could not publish a load figure", "err", err)
	}
	return next
}
