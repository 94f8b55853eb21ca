package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// handoverMetrics show the handover under way, or the last one.
type handoverMetrics struct {
	clients  *prometheus.GaugeVec
	missing  prometheus.Gauge
	rate     prometheus.Gauge
	planned  prometheus.Gauge
	underWay prometheus.Gauge
}

// What became of the clients of a handover, as the metric's closed set of labels.
var handoverFates = []string{"moved", "closed", "straggler", "gone", "told", "remaining"}

func newHandoverMetrics(all *[]prometheus.Collector) handoverMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_gateway_drain_" + name, Help: help})
		*all = append(*all, g)
		return g
	}
	m := handoverMetrics{
		clients: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spillway_gateway_drain_clients", Help: "Clients of the drain, evacuation or rebalance under way, or the last one.",
		}, []string{"fate"}),
		missing:  gauge("missing_clients", "Clients for whom no other edge has granted room."),
		rate:     gauge("granted_clients_per_second", "Most arrivals that grants of other edges allow in a second."),
		planned:  gauge("planned_seconds", "Planned end, from the start."),
		underWay: gauge("under_way", "1 while clients are handed over."),
	}
	for _, fate := range handoverFates {
		m.clients.WithLabelValues(fate)
	}
	*all = append(*all, m.clients)
	return m
}

func (m *handoverMetrics) show(f *gatewayv1.Progress) {
	for i, n := range []uint32{f.Moved, f.Closed, f.Stragglers, f.Gone, f.Told, f.Remaining} {
		m.clients.WithLabelValues(handoverFates[i]).Set(float64(n))
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
