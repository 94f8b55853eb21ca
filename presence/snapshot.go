package presence

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Snapshot is the cluster as one node sees it at one moment; immutable. The
// slices that it returns are shared: read only.
type Snapshot struct {
	members  []*Member // by role, then id
	edges    []*Member // serving, by id
	routers  []*Member // serving, by id
	seeds    []uint64  // hashes of the ids, beside routers
	revision int64
}

// NewSnapshot is for the view and for tests; see Revision.
func NewSnapshot(members []*Member, revision int64) *Snapshot {
	s := &Snapshot{members: slices.Clone(members), revision: revision}
	slices.SortFunc(s.members, func(a, b *Member) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), strings.Compare(a.Id, b.Id))
	})
	for _, m := range s.members {
		switch {
		case m.State != gatewayv1.State_STATE_SERVING:
		case m.Role == gatewayv1.Role_ROLE_EDGE:
			s.edges = append(s.edges, m)
		case m.Role == gatewayv1.Role_ROLE_ROUTER:
			s.routers = append(s.routers, m)
			s.seeds = append(s.seeds, xxhash.Sum64String(m.Id))
		}
	}
	return s
}

// Members returns all members in every state but left, by role and id.
func (s *Snapshot) Members() []*Member { return s.members }

// Routers returns the routers that serve, by id.
func (s *Snapshot) Routers() []*Member { return s.routers }

// Edges returns the edges that serve, by id.
func (s *Snapshot) Edges() []*Member { return s.edges }

// Member returns one, or nil.
func (s *Snapshot) Member(key Key) *Member {
	i, found := slices.BinarySearchFunc(s.members, key, func(m *Member, k Key) int {
		return cmp.Or(cmp.Compare(m.Role, k.Role), strings.Compare(m.Id, k.ID))
	})
	if !found {
		return nil
	}
	return s.members[i]
}

// Revision numbers ownership. It rises with every change of a router's record
// or presence and with nothing else. It is 16 times the registry's revision of
// that change, plus the routers removed since because of their silence: those
// removals have no revision of their own, and whoever compares must see them.
func (s *Snapshot) Revision() int64 { return s.revision }

// Owner is the router that owns a channel: the one with the highest hash of
// (channel, router), so that a router that leaves moves its own channels only.
// Equal in every process. nil: no router serves.
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
// they would inherit it. The slice is the caller's.
func (s *Snapshot) Ranked(channel string) []*Member {
	hash := xxhash.Sum64String(channel)
	type scored struct {
		router *Member
		score  uint64
	}
	order := make([]scored, len(s.routers))
	for i, m := range s.routers {
		order[i] = scored{m, mix(hash ^ s.seeds[i])}
	}
	// Stable: of equal scores the first id wins, as in Owner.
	slices.SortStableFunc(order, func(a, b scored) int { return cmp.Compare(b.score, a.score) })
	ranked := make([]*Member, len(order))
	for i, o := range order {
		ranked[i] = o.router
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
