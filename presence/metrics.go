package presence

import (
	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

type metrics struct {
	nodes        *prometheus.GaugeVec // role, state
	busUp        prometheus.Gauge
	leaseLosses  prometheus.Counter
	keepFailures prometheus.Counter
	lists        [numListReasons]prometheus.Counter
	departures   [numDepartures]prometheus.Counter
	heard        prometheus.Counter
	dropped      [numFigureDrops]prometheus.Counter
	kept         prometheus.Counter
}

var (
	metricRoles  = []gatewayv1.Role{gatewayv1.Role_ROLE_EDGE, gatewayv1.Role_ROLE_ROUTER}
	metricStates = []gatewayv1.State{gatewayv1.State_STATE_JOINING, gatewayv1.State_STATE_SERVING, gatewayv1.State_STATE_DRAINING}
)

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_presence_" + name, Help: help})
	}
	vec := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_presence_" + name, Help: help}, []string{label})
	}
	lists := vec("lists_total", "reason", "Full listings of the registry; all but start are restarts of the watch.")
	departures := vec("departures_total", "reason", "Members that left the view of this node.")
	dropped := vec("figures_dropped_total", "reason", "Load figures that came and were not read.")
	m := &metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spillway_presence_members", Help: "Members in the view of this node.",
		}, []string{"role", "state"}),
		busUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spillway_presence_bus_up", Help: "1 while load figures are heard on the bus, else 0.",
		}),
		leaseLosses:  counter("lease_losses_total", "Times the own lease was lost."),
		keepFailures: counter("keepalive_failures_total", "Renewals of the own lease that failed and were tried again."),
		heard:        counter("figures_heard_total", "Load figures heard on the bus, the own ones included."),
		kept:         counter("members_kept_total", "Members kept although the registry lost more than half of all."),
	}
	for reason := ListStart; reason < numListReasons; reason++ {
		m.lists[reason] = lists.WithLabelValues(reason.String())
	}
	for reason := DepartureLeft; reason < numDepartures; reason++ {
		m.departures[reason] = departures.WithLabelValues(reason.String())
	}
	for reason := range numFigureDrops {
		m.dropped[reason] = dropped.WithLabelValues(reason.String())
	}
	m.members(NewSnapshot(nil, 0))
	if r != nil {
		r.MustRegister(m.nodes, m.busUp, m.leaseLosses, m.keepFailures, lists, departures, m.heard, dropped, m.kept)
	}
	return m
}

func (m *metrics) members(s *Snapshot) {
	for _, role := range metricRoles {
		for _, state := range metricStates {
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

func (m *metrics) count(n transition) {
	switch n.kind {
	case transitionGone:
		m.departures[n.reason].Inc()
	case transitionKept:
		m.kept.Inc()
	}
}
