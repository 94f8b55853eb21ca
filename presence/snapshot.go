package presence

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

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

// RoleName is the word for a role in keys, metrics and listings.
func RoleName(r gatewayv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// StateName is the word for a state in metrics and listings.
func StateName(s gatewayv1.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

// Snapshot is the cluster as one node sees it at one moment; immutable.
type Snapshot struct {
	members         []*Member // by role, then id
	routers         []*Member // serving, by id
	seeds           []uint64  // beside routers
	routersRevision int64
}

// NewSnapshot is for the view and for tests. routersRevision is the store's
// revision of the last change among serving routers.
func NewSnapshot(members []*Member, routersRevision int64) *Snapshot {
	s := &Snapshot{members: slices.Clone(members), routersRevision: routersRevision}
	slices.SortFunc(s.members, func(a, b *Member) int {
		if a.Role != b.Role {
			return int(a.Role) - int(b.Role)
		}
		return strings.Compare(a.Id, b.Id)
	})
	for _, m := range s.members {
		if m.Role == gatewayv1.Role_ROLE_ROUTER && m.State == gatewayv1.State_STATE_SERVING {
			s.routers = append(s.routers, m)
			s.seeds = append(s.seeds, xxhash.Sum64String(m.Id))
		}
	}
	return s
}

// Members returns all members in every state but left.
func (s *Snapshot) Members() []*Member { return s.members }

// Routers returns the routers that serve.
func (s *Snapshot) Routers() []*Member { return s.routers }

// Edges returns the edges that serve.
func (s *Snapshot) Edges() []*Member {
	var edges []*Member
	for _, m := range s.members {
		if m.Role == gatewayv1.Role_ROLE_EDGE && m.State == gatewayv1.State_STATE_SERVING {
			edges = append(edges, m)
		}
	}
	return edges
}

// Revision numbers ownership: it changes when the set of serving routers does.
func (s *Snapshot) Revision() int64 { return s.routersRevision }

// Owner is the router that owns a channel: the one with the highest hash of
// (channel, router), so that a router that leaves moves its own channels only.
// nil: no router serves.
func (s *Snapshot) Owner(channel string) *Member {
	hash := xxhash.Sum64String(channel)
	var owner *Member
	var best uint64
	for i, seed := range s.seeds {
		if score := mix(hash ^ seed); owner == nil || score > best {
			owner, best = s.routers[i], score
		}
	}
	return owner
}

// Ranked is the owner of a channel and then the others, in the order in which
// they would inherit it.
func (s *Snapshot) Ranked(channel string) []*Member {
	hash := xxhash.Sum64String(channel)
	order := make([]int, len(s.routers))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if mix(hash^s.seeds[a]) > mix(hash^s.seeds[b]) {
			return -1
		}
		return 1
	})
	ranked := make([]*Member, len(order))
	for i, at := range order {
		ranked[i] = s.routers[at]
	}
	return ranked
}

// mix is the finalizer of MurmurHash3: every input bit moves every output bit.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
