package gateway

import (
	"sync"
	"sync/atomic"
	"time"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Revocations is what a cluster has revoked (presence/control.Control). Revoked is
// asked at every connect and must not block. A record is known to Revoked before
// OnRevocation's function hears of it, which is called once for each, those made
// while this process was away included, one after the other.
type Revocations interface {
	Revoked(user, tokenID string, issued time.Time) bool
	OnRevocation(func(*gatewayv1.Revocation))
}

// What follows closes the conns that a revocation names. Whether a token is good is asked
// in connect.go, credentials.go and gateway/door/request.go; presence/control keeps the
// records.

const (
	// A turn of a loop looks at so many conns (27 ns each: 0.06 ms) and closes at most
	// so many (a write of 5 us each: 0.3 ms).
	revokeScan  = 2_048
	revokeClose = 64
	// A disconnect that is heard so soon is for all conns that are there: clocks differ.
	disconnectFresh = 5 * time.Second
)

// revoker looks for the conns that records are about. Records that come while the
// loops still look wait and are looked for together, so that any number of them
// costs two walks over the conns.
type revoker struct {
	// immutable after newEdge
	loops []*loop
	clock clock

	mu      sync.Mutex // guards all below
	waiting []*gatewayv1.Revocation
	looking bool
}

// hear is called for each record; it posts.
func (v *revoker) hear(r *gatewayv1.Revocation) {
	v.mu.Lock()
	v.waiting = append(v.waiting, r)
	first := !v.looking
	v.looking = true
	v.mu.Unlock()
	if first {
		v.walk()
	}
}

// walk begins the next walk, if there is anything to look for.
func (v *revoker) walk() {
	v.mu.Lock()
	records := v.waiting
	v.waiting = nil
	v.looking = len(records) > 0
	v.mu.Unlock()
	if len(records) == 0 {
		return
	}
	left := new(atomic.Int32)
	left.Store(int32(len(v.loops)))
	rules := newRevokeRules(records, time.Now())
	for _, l := range v.loops {
		l.inbox.Post(&revokeWalk{revoker: v, rules: rules, left: left})
	}
}

// revokeWalk is one loop's walk over its conns, a piece a turn.
type revokeWalk struct {
	revoker *revoker
	rules   *revokeRules
	next    int           // slot
	left    *atomic.Int32 // loops that have not finished
}

func (w *revokeWalk) apply(l *loop) {
	end := min(w.next+revokeScan, len(l.slots))
	closed := 0
	for ; w.next < end && closed < revokeClose; w.next++ {
		c := l.slots[w.next]
		if c == nil || c.session == nil || c.closing {
			continue
		}
		if r := w.rules.match(c.session, w.revoker.clock.at(c.session.stay.Since)); r != nil {
			c.closeRevoked(r)
			closed++
		}
	}
	switch {
	case w.next < len(l.slots):
		l.inbox.Post(w)
	case w.left.Add(-1) == 0:
		w.revoker.walk()
	}
}

// revokeRules are records, found by what they are about. Immutable.
type revokeRules struct {
	users    map[string][]*gatewayv1.Revocation
	tokens   map[string]*gatewayv1.Revocation // of records without a user
	sessions map[[16]byte]*gatewayv1.Revocation
	now      time.Time
}

func newRevokeRules(records []*gatewayv1.Revocation, now time.Time) *revokeRules {
	rules := &revokeRules{
		users: make(map[string][]*gatewayv1.Revocation), tokens: make(map[string]*gatewayv1.Revocation),
		sessions: make(map[[16]byte]*gatewayv1.Revocation), now: now,
	}
	for _, r := range records {
		if id, ok := parseSession(r.Session); ok {
			rules.sessions[id] = r
		} else if r.User != "" {
			rules.users[r.User] = append(rules.users[r.User], r)
		} else if r.TokenId != "" {
			rules.tokens[r.TokenId] = r
		}
	}
	return rules
}

// match returns the record that ends a session which began at a moment, or nil.
func (x *revokeRules) match(s *session, began time.Time) *gatewayv1.Revocation {
	if r := x.sessions[s.id]; r != nil && x.reaches(r, began) {
		return r
	}
	if r := x.tokens[s.claims.ID]; r != nil && s.claims.ID != "" {
		return r
	}
	for _, r := range x.users[s.claims.Subject] {
		switch {
		case r.DisconnectUser:
			if x.reaches(r, began) {
				return r
			}
		case r.TokenId != "":
			if r.TokenId == s.claims.ID {
				return r
			}
		case r.IssuedBeforeMs != 0:
			if s.claims.IssuedAt.IsZero() || s.claims.IssuedAt.UnixMilli() < int64(r.IssuedBeforeMs) {
				return r
			}
		}
	}
	return nil
}

// reaches: connections that came later than a disconnect stay.
func (x *revokeRules) reaches(r *gatewayv1.Revocation, began time.Time) bool {
	made := time.UnixMilli(int64(r.CreatedMs))
	return x.now.Sub(made) < disconnectFresh || began.Before(made)
}

// closeRevoked ends a conn as a record says.
func (c *conn) closeRevoked(r *gatewayv1.Revocation) {
	code, reason := wire.CloseCode(r.CloseCode), reasonRevoked
	why, text := clientv1.ErrorCode_ERROR_CODE_REVOKED, "the token was revoked"
	if r.Session != "" || r.DisconnectUser {
		reason, text = reasonDisconnect, "disconnected by an operator"
		switch {
		case code < wire.CloseCredentials:
			why = clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE
		case code < wire.CloseStop:
			why = clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED
		default:
			why = clientv1.ErrorCode_ERROR_CODE_FORBIDDEN
		}
	}
	if code < 4000 || code > 4299 {
		code = wire.CloseCredentials
	}
	if r.Reason != "" {
		text = r.Reason
	}
	c.closeWith(code, why, text, reason)
}
