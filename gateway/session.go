package gateway

import (
	"time"

	"github.com/spillway-io/spillway/gateway/auth"
	"github.com/spillway-io/spillway/gateway/leave"
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
