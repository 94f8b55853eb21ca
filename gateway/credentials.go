package gateway

import (
	"errors"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/door"
	"github.com/spillway-io/spillway/gateway/ticket"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// Verifier checks tokens; CPU only. nil: none are good.
type Verifier interface {
	Verify(token string, now time.Time) (*auth.Claims, error)
}

// credentials checks what clients show, tickets and tokens, and mints tickets for them.
// Immutable; the loops, the pool and the door call it, and none of it asks anybody.
type credentials struct {
	edge        string // member id, named in tickets
	anonymous   bool
	verifier    Verifier    // nil: no token is good
	box         *ticket.Box // nil: no tickets
	revocations Revocations // nil: none
	metrics     *metrics
}

var _ door.Tickets = (*credentials)(nil)

// badCredential is a ticket or token that is not good, in the protocol's words.
type badCredential struct {
	code clientv1.ErrorCode
	text string
}

func (p *badCredential) Error() string { return p.text }

var (
	errNoCredential = &badCredential{clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, "a token is needed"}
	errTicket       = &badCredential{clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED, "the ticket is not good"}
	errTicketOver   = &badCredential{clientv1.ErrorCode_ERROR_CODE_EXPIRED, "the ticket has expired"}
	errRevoked      = &badCredential{clientv1.ErrorCode_ERROR_CODE_REVOKED, "the token was revoked"}
)

func (k *credentials) verify(token string) (*auth.Claims, error) {
	if k.verifier == nil {
		return nil, errors.New("this edge takes no tokens")
	}
	return k.verifier.Verify(token, time.Now())
}

// Revoked says that a token was revoked.
func (k *credentials) Revoked(user, tokenID string, issued time.Time) bool {
	return k.revocations != nil && user != "" && k.revocations.Revoked(user, tokenID, issued)
}

// Open reads a ticket, for the door (it decides the lane) and for connect frames. The
// error is a *badCredential.
func (k *credentials) Open(text string, now time.Time) (*ticket.Ticket, error) {
	if k.box == nil {
		return nil, errTicket
	}
	t, err := k.box.Open(text, now)
	switch {
	case errors.Is(err, ticket.ErrExpired):
		k.metrics.ticket(ticketExpired)
		return nil, errTicketOver
	case err != nil:
		k.metrics.ticket(ticketNotGood)
		return nil, errTicket
	}
	return t, nil
}

// Seal mints a ticket of this edge.
func (k *credentials) Seal(t ticket.Ticket, claims *auth.Claims, now time.Time) (string, error) {
	if k.box == nil {
		return "", ticket.ErrTooLarge
	}
	t.Edge = k.edge
	text, err := k.box.Seal(t, claims, now)
	if err != nil {
		k.metrics.ticket(ticketNotMinted)
		return "", err
	}
	k.metrics.ticket(ticketMinted)
	return text, nil
}

// identify reads the identity out of an opened ticket, unless it is over.
func (k *credentials) identify(t *ticket.Ticket, now time.Time) (identity, error) {
	switch {
	case !t.GoodAt(now):
		k.metrics.ticket(ticketExpired)
		return identity{}, errTicketOver
	case t.User == "" && !k.anonymous:
		k.metrics.ticket(ticketNotGood)
		return identity{}, errTicket
	case k.Revoked(t.User, t.TokenID, t.TokenIssued):
		k.metrics.ticket(ticketRevoked)
		return identity{}, errRevoked
	}
	claims, err := t.Claims()
	if err != nil {
		k.metrics.ticket(ticketNotGood)
		return identity{}, errTicket
	}
	k.metrics.ticket(ticketOpened)
	return identity{claims: claims, session: t.Session, resumed: t.HasSession, edge: t.Edge, by: t.Operation}, nil
}
