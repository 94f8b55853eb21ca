package presence

import (
	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

type metrics struct {
	nodes       *prometheus.GaugeVec // role, state
	leaseLosses prometheus.Counter
	lists       prometheus.Counter
	heard       prometheus.Counter
	kept        prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_presence_" + name, Help: help})
	}
	m := &metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spillway_presence_members", Help: "Members in the view of this node.",
		}, []string{"role", "state"}),
		leaseLosses: counter("lease_losses_total", "Times the own lease was lost."),
		lists:       counter("lists_total", "Full listings of the registry."),
		heard:       counter("figures_heard_total", "Load figures heard on the bus."),
		kept:        counter("members_kept_total", "Members kept although the registry lost more than half of all."),
	}
	m.members(NewSnapshot(nil, 0))
	if r != nil {
		r.MustRegister(m.nodes, m.leaseLosses, m.lists, m.heard, m.kept)
	}
	return m
}

func (m *metrics) members(s *Snapshot) {
	for _, role := range []gatewayv1.Role{gatewayv1.Role_ROLE_EDGE, gatewayv1.Role_ROLE_ROUTER} {
		for _, state := range []gatewayv1.State{gatewayv1.State_STATE_JOINING, gatewayv1.State_STATE_SERVING, gatewayv1.State_STATE_DRAINING} {
			n := 0
			for _, member := range s.members {
				if member.Role == role && member.State == state {
					n++
				}
			}
			m.nodes.WithLabelValues(RoleName(role), StateName(state)).Set(float64(n))
		}
	}
}
