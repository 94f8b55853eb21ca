package bus

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	interests prometheus.Gauge
	messages  prometheus.Counter
	overflows prometheus.Counter
	dropped   prometheus.CounterFunc
}

func newMetrics(r prometheus.Registerer, dropped func() float64) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "spillway", Subsystem: "gateway_bus", Name: name, Help: help}
	}
	m := &metrics{
		interests: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spillway_gateway_bus_interests", Help: "Channels subscribed to on the bus.",
		}),
		messages:  prometheus.NewCounter(counter("messages_total", "Messages taken from the bus.")),
		overflows: prometheus.NewCounter(counter("overflows_total", "Times that a shard's queue was found full.")),
		dropped:   prometheus.NewCounterFunc(counter("dropped_messages_total", "Messages of the bus that found a shard's queue full."), dropped),
	}
	if r != nil {
		r.MustRegister(m.interests, m.messages, m.overflows, m.dropped)
	}
	return m
}
