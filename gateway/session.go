package gateway

import (
	"bytes"
	"errors"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/feed"
	"github.com/spillway-io/spillway/gateway/leave"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// session is a client that said who it is; owned by the loop of its conn.
type session struct {
	id      [16]byte
	claims  *auth.Claims
	attempt uint64     // the highest of a session's conns counts
	order   uint32     // among the edge's sessions, as they were welcomed
	renewAt uint32     // second from which a pong brings a new ticket; 0: never
	movable bool       // its connect had an attempt: the client can move
	resumed bool       // by a ticket
	stay    leave.Stay // how long it has been here, and what brought it
}

// over says that the token behind the session has expired.
func (s *session) over(now time.Time) bool {
	return !s.claims.Expires.IsZero() && now.After(s.claims.Expires)
}

// setClaims puts new rights in force.
func (c *conn) setClaims(claims *auth.Claims) {
	if c.counted {
		c.loop.edge.counts.session(c.session, -1)
		defer c.loop.edge.counts.session(c.session, 1)
	}
	c.session.claims = claims
}

// message serves one text message: JSON objects joined by LF.
func (c *conn) message(text []byte) {
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
func (c *conn) command(line []byte) {
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

// connect looks for a good ticket, else checks the token off the loop (up to 53 us
// of CPU), and goes on in welcome. A ticket that lacks rights is completed by the
// token, if there is one.
func (c *conn) connect(id uint32, m *clientv1.Connect) {
	switch {
	case c.greeting == greetDone:
		c.fail(id, badRequest, "connected already")
		return
	case c.greeting == greetChecking:
		c.fail(id, badRequest, "a connect frame is being checked")
		return
	}
	e := c.loop.edge
	c.asked = e.clock.milliseconds(c.loop.now)
	who, err := c.byTicket(m.Ticket)
	if m.Token == "" || err == nil && !who.claims.Partial {
		switch {
		case err == nil:
			c.welcome(id, m, who)
		case e.cfg.Anonymous:
			c.welcome(id, m, fresh(auth.Anonymous()))
		default:
			code, text := tokenError(err)
			c.notGood(id, code, text)
		}
		return
	}
	check := &tokenCheck{loop: c.loop, conn: c.token, id: id, token: m.Token, connect: m, who: who}
	if !e.checks.Submit(check.run) {
		c.failLater(id, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "too many tokens to check", jitterMS(time.Second, 3*time.Second))
		return
	}
	c.greeting = greetChecking
}

// tokenCheck verifies a token on the pool and posts what came of it.
type tokenCheck struct {
	loop    *loop
	conn    uint64
	id      uint32
	token   string
	connect *clientv1.Connect // nil: a refresh
	who     identity          // of a ticket without all rights; else without claims
	claims  *auth.Claims
	err     error
}

func (t *tokenCheck) run() {
	t.claims, t.err = t.loop.edge.credentials.verify(t.token)
	t.token = ""
	t.loop.inbox.Post(t)
}

func (t *tokenCheck) apply(l *loop) {
	c := l.find(t.conn)
	if c == nil || c.closed || c.closing {
		return
	}
	if t.err == nil && l.edge.credentials.Revoked(t.claims.Subject, t.claims.ID, t.claims.IssuedAt) {
		t.err = errRevoked
	}
	if t.connect == nil {
		c.refreshed(t.id, t.claims, t.err)
		return
	}
	c.greeting = greetWaiting
	who := t.who
	if who.claims != nil {
		who = who.withToken(t.claims, t.err)
		// The ticket was good when it was opened; it may have been revoked since.
		t.err = nil
		if l.edge.credentials.Revoked(who.claims.Subject, who.claims.ID, who.claims.IssuedAt) {
			t.err = errRevoked
		}
	} else if t.err == nil {
		who = fresh(t.claims)
	}
	if t.err != nil {
		code, text := tokenError(t.err)
		c.notGood(t.id, code, text)
		return
	}
	c.welcome(t.id, t.connect, who)
}

func tokenError(err error) (clientv1.ErrorCode, string) {
	var bad *auth.Error
	if errors.As(err, &bad) {
		return bad.Code, bad.Message
	}
	var why *badCredential
	if errors.As(err, &why) {
		return why.code, why.text
	}
	return clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, "the token is not good"
}

// notGood answers a connect frame whose credentials are not good. One more may
// follow; after that the conn is closed.
func (c *conn) notGood(id uint32, code clientv1.ErrorCode, text string) {
	c.refused++
	c.loop.edge.metrics.badTokens.Inc()
	if c.refused < 2 {
		c.fail(id, code, text)
		return
	}
	c.closeAnswering(id, wire.CloseCredentials, code, text, reasonToken)
}

// welcome makes the session and asks for its subscriptions; `connected` follows
// when the router has answered for each, VerdictWait at most.
func (c *conn) welcome(id uint32, m *clientv1.Connect, who identity) {
	l := c.loop
	c.greeting = greetDone
	c.deadline = 0
	if !who.resumed {
		who.session = newSessionID()
	}
	c.session = &session{
		id: who.session, claims: who.claims, resumed: who.resumed,
		attempt: m.GetAttempt(), movable: m.Attempt != nil, order: l.edge.welcomes.Add(1), stay: leave.NewStay(l.seconds(), who.by, who.session[0]),
	}
	r := &request{c: c, id: id, connect: true}
	for _, ask := range m.Subscriptions {
		c.join(r, ask)
	}
	for _, channel := range who.claims.Join {
		if c.subscription(channel) == nil {
			c.join(r, &clientv1.SubscriptionRequest{Channel: channel})
		}
	}
	l.leaving.Came(leaves(c))
	c.beginCatchUp(who)
	l.watch(r)
}

// sendConnected is the reply to a good connect frame.
func (c *conn) sendConnected(id uint32, entries []*clientv1.SubscriptionEntry) {
	e := c.loop.edge
	c.takeOver()
	e.gate.Connected(time.Duration(e.clock.milliseconds(time.Now())-c.asked) * time.Millisecond)
	m := &clientv1.Connected{
		Session:        sessionName(c.session.id),
		Resumed:        c.session.resumed,
		Ticket:         c.resumeTicket(),
		Node:           e.cfg.ID,
		Region:         e.cfg.Region,
		PingIntervalMs: uint32(e.settings().PingInterval.Milliseconds()),
		PongTimeoutMs:  uint32(e.settings().PongTimeout.Milliseconds()),
		RetryWindowMs:  e.gate.RetryWindow(),
		MaxFrameBytes:  uint32(c.in.MaxFrameBytes()),
		ExpiresInMs:    c.expiresIn(),
		Subscriptions:  entries,
	}
	c.send(&clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Connected{Connected: m}})
}

func (c *conn) expiresIn() *uint64 {
	expires := c.session.claims.Expires
	if expires.IsZero() {
		return nil
	}
	ms := uint64(max(expires.Sub(c.loop.now).Milliseconds(), 0))
	return &ms
}

// subscribe asks for the channels of one command.
func (c *conn) subscribe(id uint32, m *clientv1.Subscribe) {
	r := &request{c: c, id: id, single: m.Single}
	for _, ask := range m.Subscriptions {
		c.join(r, ask)
	}
	c.loop.watch(r)
}

// join checks one channel of a command and asks the table for it.
func (c *conn) join(r *request, ask *clientv1.SubscriptionRequest) {
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
		c: c, channel: l.local(ask.Channel), id: l.subID, last: ask.Last,
		epoch: pull.Epoch, pos: pull.Offset, asked: pull.HasPosition,
	}
	s.channel.add(s)
	c.subs = append(c.subs, s)
	l.edge.metrics.subscriptions.Inc()
	r.await(s)
	l.edge.table.Pull(pull)
}

// unsubscribe is idempotent.
func (c *conn) unsubscribe(id uint32, channel string) {
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

// refresh checks new credentials off the loop.
func (c *conn) refresh(id uint32, token string) {
	e := c.loop.edge
	if token == "" {
		c.fail(id, badRequest, "refresh needs a token")
		return
	}
	check := &tokenCheck{loop: c.loop, conn: c.token, id: id, token: token}
	if !e.checks.Submit(check.run) {
		c.failLater(id, clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE, "too many tokens to check", jitterMS(time.Second, 3*time.Second))
	}
}

// refreshed puts new rights in force at once: channels that they do not name and
// that the old ones did are ended.
func (c *conn) refreshed(id uint32, claims *auth.Claims, err error) {
	if err != nil {
		code, text := tokenError(err)
		c.fail(id, code, text)
		return
	}
	old := c.session.claims
	if claims.Subject != old.Subject {
		c.fail(id, clientv1.ErrorCode_ERROR_CODE_FORBIDDEN, "the token is another user's")
		return
	}
	c.setClaims(claims)
	c.send(&clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Refreshed{
		Refreshed: &clientv1.Refreshed{ExpiresInMs: c.expiresIn(), Ticket: c.resumeTicket()},
	}})
	for i := len(c.subs) - 1; i >= 0; i-- {
		s := c.subs[i]
		if old.Allows(s.channel.name, auth.Subscribe) && !claims.Allows(s.channel.name, auth.Subscribe) {
			s.end(&clientv1.Error{Code: clientv1.ErrorCode_ERROR_CODE_FORBIDDEN, Message: "the new token does not name this channel"})
		}
	}
}
