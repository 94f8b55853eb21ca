package router

import (
	"time"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// look is what this router sees of a channel whose tenure is t. doubt is costly and
// told only where use needs it.
func (o *ownership) look(name string, known bool, t *tenure, now time.Time) sight {
	views := o.current()
	last := &views[len(views)-1]
	v := sight{
		self: o.self, known: known, seq: last.seq, since: last.since, breaks: o.breaks(),
		revision: uint64(max(0, last.snapshot.Revision())),
	}
	owner := last.snapshot.Owner(name)
	switch {
	case owner == nil || owner.Id != o.self:
	case !o.mine(last.snapshot, name):
		owner = nil // one of our name that died: our own record comes soon
	case o.departing.Load():
		owner = heir(last.snapshot, o.self, name)
		v.revision++ // newer than the view, older than any that follows
		v.since = o.start.Add(time.Duration(o.departed.Load()))
	}
	if owner != nil {
		v.owner = owner.Id
	}
	if v.owner == o.self || t.revision > v.revision && t.to == o.self {
		v.doubt = o.doubt(views, name, t, v.breaks, now)
	}
	return v
}

// heir is who owns a channel without one of the routers.
func heir(s *presence.Snapshot, without, name string) *presence.Member {
	for _, m := range s.Ranked(name) {
		if m.Id != without {
			return m
		}
	}
	return nil
}

// doubt says that another router may have the channel, though it is ours by the last
// view: it came to us of late, or was not ours, or we were away, since we held it.
func (o *ownership) doubt(views []view, name string, t *tenure, breaks uint64, now time.Time) bool {
	if t.state == tenureHeld || t.state == tenureLeaving {
		if t.seq == views[len(views)-1].seq && t.breaks == breaks {
			return false
		}
		same := t.breaks == breaks && o.unbroken(name, trust{seq: t.seq}, t.revision)
		return !same && o.company(views)
	}
	edge := now.Add(-o.window)
	for i := len(views) - 1; i > 0 && views[i].since.After(edge); i-- {
		if !o.mine(views[i-1].snapshot, name) {
			return o.company(views)
		}
	}
	return false
}

// company says that there are other routers, in whatever state.
func (o *ownership) company(views []view) bool {
	return len(otherRouters(views[len(views)-1].snapshot, o.self)) > 0
}

func otherRouters(s *presence.Snapshot, self string) []*presence.Member {
	var all []*presence.Member
	for _, m := range s.Members() {
		if m.Role == gatewayv1.Role_ROLE_ROUTER && m.Id != self {
			all = append(all, m)
		}
	}
	return all
}

// candidates are the other routers, in whatever state, in the order in which they may
// have a channel: who owned it before this one joined, or before it began to leave,
// stands first. All of them: with several that come and go at once any may have it.
func candidates(s *presence.Snapshot, self, name string) []*presence.Member {
	all := otherRouters(s, self)
	serving := make([]*presence.Member, len(all))
	byID := make(map[string]*presence.Member, len(all))
	for i, m := range all {
		serving[i] = &presence.Member{Id: m.Id, Role: m.Role, State: gatewayv1.State_STATE_SERVING}
		byID[m.Id] = m
	}
	ranked := presence.NewSnapshot(serving, 0).Ranked(name)
	for i, m := range ranked {
		ranked[i] = byID[m.Id]
	}
	return ranked
}
