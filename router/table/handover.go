package table

import (
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// Pack takes channels out that wait to be handed over to a router, so many and of so many
// bytes at most, but one; from now on they are nowhere else. Given or Returned must be
// called for each. It returns nothing while those that are left wait for a run of theirs
// to end: Deps.Offers is called then.
func (t *Table) Pack(to string, most int, bytes int64) []*channel.Handed {
	var all []*channel.Handed
	for _, s := range t.shards {
		t.do(s, func() {
			var size int64
			some := s.pack(to, most-len(all), bytes, &size)
			all, bytes = append(all, some...), bytes-size
		})
		if len(all) >= most || bytes <= 0 {
			break
		}
	}
	return all
}

// Withdraw ends the waiting of all channels that were offered to a router: they stay
// here, until their grace is over.
func (t *Table) Withdraw(to string) {
	for _, s := range t.shards {
		t.do(s, func() { s.withdraw(to) })
	}
}

// Given ends the hand-over of a channel that the receiver has, or that is lost.
func (t *Table) Given(h *channel.Handed) {
	s := t.shardOf(h.Meta.Channel)
	s.post(command{kind: cmdCall, x: func() { s.handed(h, false) }})
}

// Returned puts a channel back that the receiver certainly did not take.
func (t *Table) Returned(h *channel.Handed) {
	s := t.shardOf(h.Meta.Channel)
	s.post(command{kind: cmdCall, x: func() { s.handed(h, true) }})
}

// Accept takes a channel that another router hands over, and returns when it is here.
func (t *Table) Accept(h *channel.Handed, ns *namespace.Namespace) {
	s := t.shardOf(h.Meta.Channel)
	t.do(s, func() {
		s.on(s.open(h.Meta.Channel, ns), func(e *entry) { e.Accept(&s.step, h) })
	})
}

// Asked answers a router that owns channels by its view of a revision and does not have
// them, in their order.
func (t *Table) Asked(by string, revision uint64, names []string) []gatewayv1.Taking {
	answers := make(map[string]gatewayv1.Taking, len(names))
	for s, part := range t.split(names) {
		t.do(s, func() {
			for _, name := range part {
				// Who asks for what is not here may see less than we do.
				s.on(s.known(name, &namespace.Namespace{}), func(e *entry) { answers[name] = e.Asked(&s.step, by, revision) })
			}
		})
	}
	all := make([]gatewayv1.Taking, len(names))
	for i, name := range names {
		all[i] = answers[name]
	}
	return all
}

// Nobody says that no other router has a channel.
func (t *Table) Nobody(name string) {
	s := t.shardOf(name)
	s.post(command{kind: cmdCall, x: func() {
		if e := s.channels[name]; e != nil {
			s.on(e, func(e *entry) { e.Nobody(&s.step) })
		}
	}})
}

// Awaiting returns those of some channels that still wait to be handed over to this router.
func (t *Table) Awaiting(names []string) []string {
	return t.those(names, (*channel.Channel).Awaiting)
}

// Offered is how many channels wait to be handed over, or are on their way.
func (t *Table) Offered() int64 { return t.offered.Load() }
