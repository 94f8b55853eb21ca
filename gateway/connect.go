package gateway

import (
	"errors"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/leave"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// connect looks for a good ticket, else checks the token off the loop (up to 53 us
// of CPU), and goes on in welcome. A ticket that lacks rights is completed by the
// token, if there is one.
func (c commands) connect(id uint32, m *clientv1.Connect) {
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
		commands{c}.refreshed(t.id, t.claims, t.err)
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
		commands{c}.notGood(t.id, code, text)
		return
	}
	commands{c}.welcome(t.id, t.connect, who)
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
func (c commands) notGood(id uint32, code clientv1.ErrorCode, text string) {
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
func (c commands) welcome(id uint32, m *clientv1.Connect, who identity) {
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
	r := &request{c: c.conn, id: id, connect: true}
	for _, ask := range m.Subscriptions {
		c.join(r, ask)
	}
	for _, channel := range who.claims.Join {
		if c.subscription(channel) == nil {
			c.join(r, &clientv1.SubscriptionRequest{Channel: channel})
		}
	}
	l.leaving.Came(leaves(c.conn))
	c.beginCatchUp(who)
	l.watch(r)
}

// sendConnected is the reply to a good connect frame.
func (c commands) sendConnected(id uint32, entries []*clientv1.SubscriptionEntry) {
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

func (c commands) expiresIn() *uint64 {
	expires := c.session.claims.Expires
	if expires.IsZero() {
		return nil
	}
	ms := uint64(max(expires.Sub(c.loop.now).Milliseconds(), 0))
	return &ms
}

// refresh checks new credentials off the loop.
func (c commands) refresh(id uint32, token string) {
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
func (c commands) refreshed(id uint32, claims *auth.Claims, err error) {
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

// setClaims puts new rights in force.
func (c commands) setClaims(claims *auth.Claims) {
	if c.counted {
		c.loop.edge.counts.session(c.session, -1)
		defer c.loop.edge.counts.session(c.session, 1)
	}
	c.session.claims = claims
}
