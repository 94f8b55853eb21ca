package presence

import (
	"strings"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Member is the record of one node. Members in a Snapshot must not be changed.
type Member = gatewayv1.Member

// Figure is what a member said last of its load.
type Figure = gatewayv1.LoadFigure

// Key names a member: ids are unique within a role.
type Key struct {
	Role gatewayv1.Role
	ID   string
}

// KeyOf is the key of a member.
func KeyOf(m *Member) Key { return Key{m.Role, m.Id} }

// String is "router/router-1".
func (k Key) String() string { return RoleName(k.Role) + "/" + k.ID }

// RoleName is the word for a role in keys, metrics and listings.
func RoleName(r gatewayv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// StateName is the word for a state in metrics and listings.
func StateName(s gatewayv1.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

const (
	// figuresMissed is how many figures in a row a silent member has not sent.
	figuresMissed = 3
	// figuresEach is the number of members up to which all speak every interval:
	// past it edges slow down, so that each node hears as many figures as before.
	figuresEach = 100
)

// figureInterval is the time between two figures of one member of a cluster of
// n. Routers do not slow down: they are few, and their silence makes channels
// suspect within three intervals.
func figureInterval(base time.Duration, role gatewayv1.Role, n int) time.Duration {
	if role == gatewayv1.Role_ROLE_ROUTER || n <= figuresEach {
		return base
	}
	return base * time.Duration(n) / figuresEach
}
