package handover

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	given, returned, lost prometheus.Counter
	takes                 prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	moved := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_router_handover_channels_total",
		Help: "Channels that this router handed over: given, returned (certainly not taken), lost (nobody knows).",
	}, []string{"hand"})
	m := &metrics{
		given: moved.WithLabelValues("given"), returned: moved.WithLabelValues("returned"), lost: moved.WithLabelValues("lost"),
		takes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spillway_router_handover_takes_total", Help: "Questions to other routers for channels that are ours by now.",
		}),
	}
	if r != nil {
		r.MustRegister(moved, m.takes)
	}
	return m
}
