package gateway

import (
	"bytes"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/feed"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// commands serves what the client of a conn asks: it is the conn, seen from the protocol.
// A conn knows bytes, its queue and its end; this side of it knows commands, credentials
// and tickets.
type commands struct{ *conn }

// message serves one text message: JSON objects joined by LF.
func (c commands) message(text []byte) {
	for len(text) > 0 && !c.closing && !c.closed {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			c.command(line)
		}
	}
}

// command serves one command. Whatever is wrong with it is answered; nothing of
// it is ever silently dropped.
func (c commands) command(line []byte) {
	f, problem := wire.DecodeClient(line)
	if problem != nil {
		c.fail(problem.ID, problem.Code, problem.Message)
		return
	}
	c.loop.edge.metrics.command(f)
	if connect := f.GetConnect(); connect != nil {
		c.connect(f.Id, connect)
		return
	}
	if c.session == nil {
		c.fail(f.Id, badRequest, "connect first")
		return
	}
	switch m := f.Frame.(type) {
	case *clientv1.ClientFrame_Subscribe:
		c.subscribe(f.Id, m.Subscribe)
	case *clientv1.ClientFrame_Unsubscribe:
		c.unsubscribe(f.Id, m.Unsubscribe.Channel)
	case *clientv1.ClientFrame_Publish:
		c.publish(f.Id, m.Publish)
	case *clientv1.ClientFrame_History:
		c.history(f.Id, m.History)
	case *clientv1.ClientFrame_Refresh:
		c.refresh(f.Id, m.Refresh.Token)
	case *clientv1.ClientFrame_Ping:
		c.send(&clientv1.ServerFrame{Id: f.Id, Frame: &clientv1.ServerFrame_Pong{
			Pong: &clientv1.Pong{RetryWindowMs: c.loop.edge.gate.RetryWindow(), Ticket: c.renewedTicket()},
		}})
	case *clientv1.ClientFrame_Presence:
		c.fail(f.Id, clientv1.ErrorCode_ERROR_CODE_NOT_FOUND, "this namespace has no presence")
	}
}

const badRequest = clientv1.ErrorCode_ERROR_CODE_BAD_REQUEST

// fail answers a command with an error that will not go away by itself.
func (c *conn) fail(id uint32, code clientv1.ErrorCode, message string) {
	c.send(&clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Error{
		Error: &clientv1.Error{Code: code, Message: message},
	}})
}

// failLater answers a command that may succeed after a wait.
func (c *conn) failLater(id uint32, code clientv1.ErrorCode, message string, afterMS uint32) {
	c.send(&clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Error{
		Error: &clientv1.Error{Code: code, Message: message, Temporary: true, RetryAfterMs: &afterMS},
	}})
}

// subscribe asks for the channels of one command.
func (c commands) subscribe(id uint32, m *clientv1.Subscribe) {
	r := &request{c: c.conn, id: id, single: m.Single}
	for _, ask := range m.Subscriptions {
		c.join(r, ask)
	}
	c.loop.watch(r)
}

// join checks one channel of a command and asks the table for it.
func (c commands) join(r *request, ask *clientv1.SubscriptionRequest) {
	l := c.loop
	refuse := func(code clientv1.ErrorCode, text string) {
		r.add(&clientv1.SubscriptionEntry{Channel: ask.Channel, Error: &clientv1.Error{Code: code, Message: text}})
	}
	if err := wire.CheckChannel(ask.Channel); err != nil {
		refuse(badRequest, err.Error())
		return
	}
	if c.subscription(ask.Channel) != nil {
		refuse(badRequest, "subscribed already")
		return
	}
	if len(c.subs) >= l.edge.settings().MaxSubscriptions {
		refuse(clientv1.ErrorCode_ERROR_CODE_RATE_LIMITED, "too many subscriptions on this connection")
		return
	}
	granted := c.session.claims.Allows(ask.Channel, auth.Subscribe)
	if !granted && wire.Namespace(ask.Channel) == wire.UserNamespace {
		refuse(c.lacking(), "this is another user's channel")
		return
	}
	pull := feed.Pull{
		Sink: l.id, Conn: c.token, Channel: ask.Channel, Last: ask.Last,
		OpenOnly: !granted, MaxBytes: l.edge.cfg.SendQueueBytes / 2, First: true,
	}
	if ask.Offset != nil {
		// An epoch that is not one of ours is answered as any foreign position.
		pull.HasPosition, pull.Offset = true, *ask.Offset
		pull.Epoch, _ = wire.ParseEpoch(ask.Epoch)
	}
	l.subID++
	pull.Sub = l.subID
	s := &subscription{
		c: c.conn, channel: l.local(ask.Channel), id: l.subID, last: ask.Last,
		epoch: pull.Epoch, pos: pull.Offset, asked: pull.HasPosition,
	}
	s.channel.add(s)
	c.subs = append(c.subs, s)
	l.edge.metrics.subscriptions.Inc()
	r.await(s)
	l.edge.table.Pull(pull)
}

// unsubscribe is idempotent.
func (c commands) unsubscribe(id uint32, channel string) {
	if s := c.subscription(channel); s != nil {
		if s.req != nil {
			s.req.verdict(s, &clientv1.SubscriptionEntry{Channel: channel, Error: &clientv1.Error{
				Code: badRequest, Message: "unsubscribed before it was answered",
			}})
		}
		c.remove(s)
	}
	c.send(&clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Unsubscribed{
		Unsubscribed: &clientv1.Unsubscribed{Channel: channel},
	}})
}
