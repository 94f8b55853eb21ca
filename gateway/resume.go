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

// byTicket looks for an identity in the tickets a client brought: the one in its
// connect frame, and the one that the door opened. errNoCredential: there is none.
// It costs under a microsecond and asks nobody.
func (c commands) byTicket(text string) (identity, error) {
	opened := c.offered
	c.offered = nil
	err := error(errNoCredential)
	if text != "" {
		var t *ticket.Ticket
		if t, err = c.loop.edge.credentials.Open(text, c.loop.now); err == nil && t.HasIdentity {
			opened = t
		}
	}
	if opened == nil || !opened.HasIdentity {
		if err == nil {
			err = errNoCredential // a pass without identity
		}
		return identity{}, err
	}
	return c.loop.edge.credentials.identify(opened, c.loop.now)
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
func (c commands) resumeTicket() string {
	text, err := c.mint(ticket.Ticket{Kind: ticket.Resume})
	now, s := c.loop.now, c.session
	switch {
	case errors.Is(err, ticket.ErrNoKey):
		s.renewAt = c.loop.edge.clock.seconds(now.Add(retryTicket))
	case err != nil, !s.claims.Expires.IsZero() && s.claims.Expires.Before(now.Add(ticket.Life)):
		s.renewAt = 0 // another one would live no longer
	default:
		s.renewAt = c.loop.edge.clock.seconds(now.Add(ticket.Life / 2))
	}
	return text
}

// renewedTicket is a fresh ticket when the last one is past half of its life.
func (c commands) renewedTicket() string {
	if c.session.renewAt == 0 || c.loop.seconds() < c.session.renewAt || c.superseded {
		return ""
	}
	return c.resumeTicket()
}

// mint seals t with the session and the rights of c.
func (c commands) mint(t ticket.Ticket) (string, error) {
	t.HasSession, t.Session = true, c.session.id
	return c.loop.edge.credentials.Seal(t, c.session.claims, c.loop.now)
}

// movedTicket is for a client that is told to come to target (member id, or "") in
// its slot. "": none can be minted; the client then comes with the one it has.
func (c commands) movedTicket(operation, target string, from, until time.Time) string {
	text, _ := c.mint(ticket.Ticket{Kind: ticket.Moved, Operation: operation, Target: target, SlotFrom: from, SlotUntil: until})
	return text
}

// lacking is what a client hears whose rights do not name a channel: with a ticket
// from which rights were left out it may have them all the same.
func (c commands) lacking() clientv1.ErrorCode {
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
