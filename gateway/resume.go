package gateway

import (
	"encoding/base64"
	"errors"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/ticket"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// identity is who a client turned out to be, and by what.
type identity struct {
	claims  *auth.Claims
	session [16]byte
	resumed bool   // session is one that a ticket named; else a new one is made
	edge    string // that minted the ticket
	by      string // operation that sent the client here
}

// fresh is the identity of a client that comes without a ticket.
func fresh(claims *auth.Claims) identity { return identity{claims: claims} }

// credential is a ticket or token that is not good, in the protocol's words.
type credential struct {
	code clientv1.ErrorCode
	text string
}

func (p *credential) Error() string { return p.text }

var (
	errNoCredential = &credential{clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, "a token is needed"}
	errTicket       = &credential{clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, "the ticket is not good"}
	errTicketOver   = &credential{clientv1.ErrorCode_ERROR_CODE_EXPIRED, "the ticket has expired"}
	errRevoked      = &credential{clientv1.ErrorCode_ERROR_CODE_REVOKED, "the token was revoked"}
)

// byTicket looks for an identity in the tickets a client brought: the one in its
// connect frame, and the one that the door opened. errNoCredential: there is none.
// It costs under a microsecond and asks nobody.
func (c *conn) byTicket(text string) (identity, error) {
	opened := c.offered
	c.offered = nil
	err := error(errNoCredential)
	if text != "" {
		var t *ticket.Ticket
		if t, err = c.loop.edge.openTicket(text, c.loop.now); err == nil && t.HasIdentity {
			opened = t
		}
	}
	if opened == nil || !opened.HasIdentity {
		if err == nil {
			err = errNoCredential // a pass without identity
		}
		return identity{}, err
	}
	return c.loop.edge.identify(opened, c.loop.now)
}

// openTicket is also the door's: it decides the lane by what it returns. The error
// is a *credential.
func (e *Edge) openTicket(text string, now time.Time) (*ticket.Ticket, error) {
	if e.tickets == nil {
		return nil, errTicket
	}
	t, err := e.tickets.Open(text, now)
	switch {
	case errors.Is(err, ticket.ErrExpired):
		e.metrics.ticket(ticketExpired)
		return nil, errTicketOver
	case err != nil:
		e.metrics.ticket(ticketNotGood)
		return nil, errTicket
	}
	return t, nil
}

// identify reads the identity out of an opened ticket, unless it is over.
func (e *Edge) identify(t *ticket.Ticket, now time.Time) (identity, error) {
	switch {
	case !t.GoodAt(now):
		e.metrics.ticket(ticketExpired)
		return identity{}, errTicketOver
	case t.User == "" && !e.cfg.Anonymous:
		e.metrics.ticket(ticketNotGood)
		return identity{}, errTicket
	case e.revoked(t.User, t.TokenID, t.TokenIssued):
		e.metrics.ticket(ticketRevoked)
		return identity{}, errRevoked
	}
	claims, err := t.Claims()
	if err != nil {
		e.metrics.ticket(ticketNotGood)
		return identity{}, errTicket
	}
	e.metrics.ticket(ticketOpened)
	return identity{claims: claims, session: t.Session, resumed: t.HasSession, edge: t.Edge, by: t.Operation}, nil
}

// withToken is the identity of a client whose ticket lacks rights, once its token
// was checked as well: the token's rights in the ticket's session. A token that is
// not good takes nothing away from a ticket that is; one of somebody else begins a
// session of his.
func (who identity) withToken(claims *auth.Claims, err error) identity {
	switch {
	case err != nil:
		return who
	case claims.Subject != who.claims.Subject:
		return fresh(claims)
	}
	who.claims = claims
	return who
}

// retryTicket is how long a session waits for a key to mint with.
const retryTicket = 30 * time.Second

// resumeTicket mints a ticket for the session and notes when the next one is due.
// "": there is none to be had.
func (c *conn) resumeTicket() string {
	text, err := c.mint(ticket.Ticket{Kind: ticket.Resume})
	now, s := c.loop.now, c.session
	switch {
	case errors.Is(err, ticket.ErrNoKey):
		s.renewAt = c.loop.edge.seconds(now.Add(retryTicket))
	case err != nil, !s.claims.Expires.IsZero() && s.claims.Expires.Before(now.Add(ticket.Life)):
		s.renewAt = 0 // another one would live no longer
	default:
		s.renewAt = c.loop.edge.seconds(now.Add(ticket.Life / 2))
	}
	return text
}

// renewedTicket is a fresh ticket when the last one is past half of its life.
func (c *conn) renewedTicket() string {
	if c.session.renewAt == 0 || c.loop.seconds() < c.session.renewAt || c.superseded {
		return ""
	}
	return c.resumeTicket()
}

// mint seals t with the session and the rights of c.
func (c *conn) mint(t ticket.Ticket) (string, error) {
	e := c.loop.edge
	if e.tickets == nil {
		return "", ticket.ErrTooLarge
	}
	t.HasSession, t.Session, t.Edge = true, c.session.id, e.cfg.ID
	text, err := e.tickets.Seal(t, c.session.claims, c.loop.now)
	if err != nil {
		e.metrics.ticket(ticketNotMinted)
		return "", err
	}
	e.metrics.ticket(ticketMinted)
	return text, nil
}

// movedTicket is for a client that is told to come to target (member id, or "") in
// its slot. "": none can be minted; the client then comes with the one it has.
func (c *conn) movedTicket(operation, target string, from, until time.Time) string {
	text, _ := c.mint(ticket.Ticket{Kind: ticket.Moved, Operation: operation, Target: target, SlotFrom: from, SlotUntil: until})
	return text
}

// lacking is what a client hears whose rights do not name a channel: with a ticket
// from which rights were left out it may have them all the same.
func (c *conn) lacking() clientv1.ErrorCode {
	if c.session.claims.Partial {
		return clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED
	}
	return clientv1.ErrorCode_ERROR_CODE_FORBIDDEN
}

// sessionName is how clients and operators see a session id.
func sessionName(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// parseSession is the reverse of sessionName.
func parseSession(name string) (id [16]byte, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(name)
	return id, err == nil && copy(id[:], b) == len(id) && len(b) == len(id)
}
