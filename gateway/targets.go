package gateway

import (
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/spillway-io/spillway/presence"
	"github.com/spillway-io/spillway/presence/drain"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// silences is what a membership that takes load figures from the bus says besides
// (presence.Cluster). A member is silent if it sent no figure for three seconds on a
// bus that works; the bus works if figures arrive at all.
type silences interface {
	Silent(presence.Key) bool
	BusWorks() bool
}

// others are the edges that clients could go to, as membership and figures show them.
// below > 0: only edges of the own region with fewer conns than that, and only up to
// there.
func (e *Edge) others(below int) []drain.Receiver {
	snapshot, figures := e.members.Snapshot(), e.members.Figures()
	quiet, _ := e.members.(silences)
	own := e.ownAddress(snapshot)
	var all []drain.Receiver
	for _, m := range snapshot.Members() {
		if m.Role != gatewayv1.Role_ROLE_EDGE || m.Id == e.cfg.ID {
			continue
		}
		key := keyOf(m)
		r := drain.Receiver{
			ID: m.Id, Region: m.Region, Headroom: int(m.Capacity), Addressed: mayHint(own, m.Address),
			Draining: m.State != gatewayv1.State_STATE_SERVING, Silent: quiet != nil && quiet.Silent(key),
		}
		if f := figures[key]; f != nil && f.Incarnation == m.Incarnation {
			r.Draining = r.Draining || f.State == gatewayv1.State_STATE_DRAINING
			r.MovedPerSecond, r.Headroom = f.MovedPerSecond, headroomOf(f)
			if below > 0 {
				r.Headroom = min(r.Headroom, below-int(f.Conns+f.Granted))
			}
		}
		if below > 0 && m.Region != e.cfg.Region {
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

func (e *Edge) ownAddress(s *presence.Snapshot) string {
	if m := s.Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: e.cfg.ID}); m != nil {
		return m.Address
	}
	return e.cfg.AdvertiseURL
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

// addressOf is the registered URL of a member; "": it is none any more.
func (e *Edge) addressOf(id string) string {
	s := e.members.Snapshot()
	m := s.Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: id})
	if m == nil || !mayHint(e.ownAddress(s), m.Address) {
		return ""
	}
	return m.Address
}

// incarnation of this edge; 0: not known. A membership that does not say it shows it
// once the edge is there; but what it shows may as well be one that died before.
func (e *Edge) incarnation() uint64 {
	if m, ok := e.members.(interface{ Incarnation() uint64 }); ok {
		return m.Incarnation()
	}
	if m := e.members.Snapshot().Member(presence.Key{Role: gatewayv1.Role_ROLE_EDGE, ID: e.cfg.ID}); m != nil {
		return m.Incarnation
	}
	return 0
}

// leavingRetry is over how long those are spread who come to an edge that leaves.
const leavingRetry = time.Second

// likelyAddress draws one of the others, those of the own region first, weighted by
// headroom; "": none has room and an address.
func (e *Edge) likelyAddress(others []drain.Receiver) string {
	own := e.drawAddress(others, func(region string) bool { return region == e.cfg.Region })
	if own != "" {
		return own
	}
	return e.drawAddress(others, func(region string) bool { return region != e.cfg.Region })
}

// drawAddress draws one of some regions, weighted by headroom.
func (e *Edge) drawAddress(others []drain.Receiver, of func(region string) bool) string {
	weight := func(r drain.Receiver) int {
		if !r.Addressed || r.Draining || r.Silent || !of(r.Region) {
			return 0
		}
		return max(r.Headroom, 0)
	}
	total := 0
	for _, r := range others {
		total += weight(r)
	}
	if total == 0 {
		return ""
	}
	at := rand.IntN(total)
	for _, r := range others {
		if at -= weight(r); at < 0 {
			return e.addressOf(r.ID)
		}
	}
	return ""
}
