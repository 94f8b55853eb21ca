// Package targets knows where an edge may send clients: which other edges there are, how
// much room they say they have, and at which address a client reaches them.
//
// The door uses it when it refuses or advises, package leave when it moves clients, and
// the edge hands it the membership. It reads the membership's snapshot and the load
// figures, blocks nowhere, keeps nothing but what it was made with, and may be used from
// any goroutine.
//
// Invariant I12: a client is never sent from wss:// to ws://. What it leaves out on
// purpose: who goes where is decided by a plan (presence/drain) or by the dice of its
// callers; a target that fills up says so itself.
package targets

import (
	"math/rand/v2"
	"net/url"
	"strings"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Membership is who is in the cluster and what they told of themselves
// (presence.Cluster). Neither blocks.
type Membership interface {
	Snapshot() *presence.Snapshot
	Figures() map[presence.Key]*presence.Figure
}

// silences is what a membership that takes load figures from the bus says besides
// (presence.Cluster). A member is silent if it sent no figure for three seconds on a
// bus that works; the bus works if figures arrive at all.
type silences interface {
	Silent(presence.Key) bool
	BusWorks() bool
}

// Self is the edge that asks.
type Self struct {
	ID, Region   string
	AdvertiseURL string // "": none
}

// View is the other edges as one edge sees them. Immutable.
type View struct {
	self     Self
	members  Membership
	silences silences // nil: the membership does not say
}

// New makes the view of one edge.
func New(self Self, members Membership) *View {
	quiet, _ := members.(silences)
	return &View{self: self, members: members, silences: quiet}
}

// Silent says that an edge has not told its load for a while, though the bus works.
func (v *View) Silent(m *presence.Member) bool {
	return v.silences != nil && v.silences.Silent(presence.KeyOf(m))
}

// Edges are the edges that clients could go to, as membership and figures show them.
// below > 0: only edges of the own region with fewer conns than that, and only up to
// there.
func (v *View) Edges(below int) []drain.Receiver {
	snapshot, figures := v.members.Snapshot(), v.members.Figures()
	own := v.ownAddress(snapshot)
	var all []drain.Receiver
	for _, m := range snapshot.Members() {
		if m.Role != gatewayv1.Role_ROLE_EDGE || m.Id == v.self.ID {
			continue
		}
		r := drain.Receiver{
			ID: m.Id, Region: m.Region, Headroom: int(m.Capacity), Addressed: mayHint(own, m.Address),
			Draining: m.State != gatewayv1.State_STATE_SERVING, Silent: v.Silent(m),
		}
		if f := figures[presence.KeyOf(m)]; f != nil && f.Incarnation == m.Incarnation {
			r.Draining = r.Draining || f.State == gatewayv1.State_STATE_DRAINING
			r.MovedPerSecond, r.Headroom = f.MovedPerSecond, headroomOf(f)
			if below > 0 {
				r.Headroom = min(r.Headroom, below-int(f.Conns+f.Granted))
			}
		}
		if below > 0 && m.Region != v.self.Region {
			continue
		}
		all = append(all, r)
	}
	return all
}

// headroomOf: an edge that tells no rates tells no headroom either.
func headroomOf(f *presence.Figure) int {
	if f.MovedPerSecond > 0 {
		return int(f.Headroom)
	}
	return int(f.Capacity - min(f.Capacity, f.Conns+f.Granted))
}

func (v *View) ownAddress(s *presence.Snapshot) string {
	if m := s.Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: v.self.ID}); m != nil {
		return m.Address
	}
	return v.self.AdvertiseURL
}

// mayHint says whether clients of an edge with an address may be sent to another
// one: never from wss to ws (I12). An edge without an address does not know how its
// clients came, so only wss is safe.
func mayHint(own, address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return false
	}
	switch u.Scheme {
	case "wss":
		return true
	case "ws":
		o, err := url.Parse(own)
		return err == nil && o.Scheme == "ws"
	}
	return false
}

// Address is the registered URL of an edge; "": it is none any more, or clients of this
// edge may not be sent there.
func (v *View) Address(id string) string {
	s := v.members.Snapshot()
	m := s.Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: id})
	if m == nil || !mayHint(v.ownAddress(s), m.Address) {
		return ""
	}
	return m.Address
}

// EndsTLS says that an edge may end TLS itself, so that its clients wait for handshakes.
func (v *View) EndsTLS(id string) bool { return strings.HasPrefix(v.Address(id), "wss://") }

// AnyTLS says that another edge may.
func (v *View) AnyTLS() bool {
	for _, m := range v.members.Snapshot().Edges() {
		if m.Id != v.self.ID && strings.HasPrefix(m.Address, "wss://") {
			return true
		}
	}
	return false
}

// Incarnation of this edge; 0: not known. A membership that does not say it shows it
// once the edge is there; but what it shows may as well be one that died before.
func (v *View) Incarnation() uint64 {
	if m, ok := v.members.(interface{ Incarnation() uint64 }); ok {
		return m.Incarnation()
	}
	if m := v.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: v.self.ID}); m != nil {
		return m.Incarnation
	}
	return 0
}

// SameRegion says whether an edge is of this one's region, as far as is known.
func (v *View) SameRegion(edge string) bool {
	if edge == v.self.ID {
		return true
	}
	for _, m := range v.members.Snapshot().Members() {
		if m.Role == gatewayv1.Role_ROLE_EDGE && m.Id == edge {
			return m.Region == v.self.Region
		}
	}
	return true // it has left
}

// Likely draws one of some edges, those of the own region first, weighted by headroom,
// and returns its address; "": none has room and an address.
func (v *View) Likely(edges []drain.Receiver) string {
	own := v.Draw(edges, func(region string) bool { return region == v.self.Region })
	if own != "" {
		return own
	}
	return v.Draw(edges, func(region string) bool { return region != v.self.Region })
}

// Draw draws one of some regions, weighted by headroom.
func (v *View) Draw(edges []drain.Receiver, of func(region string) bool) string {
	return v.Address(draw(edges, func(r drain.Receiver) (string, int) {
		if !r.Addressed || r.Draining || r.Silent || !of(r.Region) {
			return "", 0
		}
		return r.ID, max(r.Headroom, 0)
	}))
}

// InRegion draws an edge of the own region with an address, weighted by headroom less
// grants; "": there is none. except is left out; own is asked for this edge's headroom, for
// as long as its load figure has not come back to it.
func (v *View) InRegion(except string, own func() uint64) string {
	figures, snapshot := v.members.Figures(), v.members.Snapshot()
	address := v.ownAddress(snapshot)
	return draw(snapshot.Edges(), func(m *presence.Member) (string, int) {
		if !mayHint(address, m.Address) || m.Region != v.self.Region || m.Id == except {
			return "", 0
		}
		if f := figures[presence.KeyOf(m)]; f != nil {
			return m.Address, int(f.Headroom) // grants are taken off
		} else if m.Id == v.self.ID {
			return m.Address, int(own())
		}
		return "", 0
	})
}

// draw takes one of all by weight; "": none has any.
func draw[T any](all []T, weigh func(T) (name string, weight int)) string {
	total := 0
	for _, x := range all {
		_, weight := weigh(x)
		total += weight
	}
	if total == 0 {
		return ""
	}
	at := rand.IntN(total)
	for _, x := range all {
		name, weight := weigh(x)
		if at -= weight; at < 0 {
			return name
		}
	}
	return ""
}

// Mean is the mean of conns over the region's serving edges, of which this one has own.
// false: it cannot be told, clients are on their way, or there is nobody to share with.
// balancer: what is moved lands where there are few, though edges have no addresses.
func (v *View) Mean(own int, balancer bool) (mean int, ok bool) {
	if v.silences != nil && !v.silences.BusWorks() {
		return 0, false // every edge would compare itself of now with others of then
	}
	figures, snapshot := v.members.Figures(), v.members.Snapshot()
	sum, edges, addressed := own, 1, balancer
	address := v.ownAddress(snapshot)
	for _, m := range snapshot.Members() {
		if m.Role != gatewayv1.Role_ROLE_EDGE || m.Region != v.self.Region || m.Id == v.self.ID {
			continue
		}
		f := figures[presence.KeyOf(m)]
		if v.Silent(m) || m.State != gatewayv1.State_STATE_SERVING ||
			f == nil || f.Incarnation != m.Incarnation || f.State != gatewayv1.State_STATE_SERVING {
			return 0, false
		}
		addressed = addressed || mayHint(address, m.Address)
		sum += int(f.Conns + f.Granted)
		edges++
	}
	return sum / edges, edges > 1 && addressed
}
