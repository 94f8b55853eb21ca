package bus

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	sent, sentBytes, splits prometheus.Counter
	drops                   drops
}

// drops counts envelopes that never reached the bus, by reason.
type drops struct {
	queue     prometheus.Counter // the own queue was full: nats.go stood still
	reconnect prometheus.Counter // its reconnect buffer was full
	failed    prometheus.Counter // it refused otherwise
	invalid   prometheus.Counter // it could not be encoded
}

func newMetrics(r prometheus.Registerer, queued func() float64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_bus_" + name, Help: help})
	}
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_bus_drops_total", Help: "Envelopes that never reached the bus, by reason.",
	}, []string{"reason"})
	m := &metrics{
		sent:      counter("envelopes_total", "Envelopes given to the bus."),
		sentBytes: counter("sent_bytes_total", "Bytes given to the bus."),
		splits:    counter("splits_total", "Envelopes above the payload limit, sent in parts."),
		drops: drops{
			queue: dropped.WithLabelValues("queue"), reconnect: dropped.WithLabelValues("reconnect"),
			failed: dropped.WithLabelValues("failed"), invalid: dropped.WithLabelValues("invalid"),
		},
	}
	if r != nil {
		r.MustRegister(m.sent, m.sentBytes, m.splits, dropped, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spillway_bus_queue_bytes", Help: "Bytes waiting for the bus.",
		}, queued))
	}
	return m
}
