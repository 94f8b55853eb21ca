package leave

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/internal/meter"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// metrics show the departure under way, or the last one.
type metrics struct {
	clients  *prometheus.GaugeVec
	missing  prometheus.Gauge
	rate     prometheus.Gauge
	planned  prometheus.Gauge
	underWay prometheus.Gauge
}

// What became of the clients that were to leave, as the metric's closed set of labels.
var fates = []string{"moved", "closed", "straggler", "gone", "hinted", "remaining"}

func newMetrics(r prometheus.Registerer) *metrics {
	set := new(meter.Set)
	m := &metrics{
		clients:  set.Gauges("drain_clients", "Clients of the drain, evacuation or rebalance under way, or the last one.", "fate", fates),
		missing:  set.Gauge("drain_missing_clients", "Clients for whom no other edge has granted room."),
		rate:     set.Gauge("drain_granted_clients_per_second", "Most arrivals that grants of other edges allow in a second."),
		planned:  set.Gauge("drain_planned_seconds", "Planned end, from the start."),
		underWay: set.Gauge("drain_under_way", "1 while clients are moved to other edges."),
	}
	set.Register(r)
	return m
}

func (m *metrics) show(f *gatewayv1.Progress) {
	for i, n := range []uint32{f.Moved, f.Closed, f.Stragglers, f.Gone, f.Told, f.Remaining} {
		m.clients.WithLabelValues(fates[i]).Set(float64(n))
	}
	m.missing.Set(float64(f.Missing))
	m.rate.Set(f.GrantedPerSecond)
	m.planned.Set(float64(f.PlannedMs) / 1000)
	m.underWay.Set(1)
	if f.Ended {
		m.rate.Set(0)
		m.underWay.Set(0)
	}
}
