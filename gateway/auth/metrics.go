package auth

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	fetched prometheus.Counter
	failed  prometheus.Counter
	keys    prometheus.Gauge
}

// newMetrics registers with r unless it is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	fetches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_auth_jwks_fetches_total", Help: "Fetches of the keys that tokens are checked with.",
	}, []string{"result"})
	m := &metrics{
		fetched: fetches.WithLabelValues("ok"),
		failed:  fetches.WithLabelValues("failed"),
		keys: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spillway_auth_jwks_keys", Help: "Usable keys in the last set that was fetched.",
		}),
	}
	if r != nil {
		r.MustRegister(fetches, m.keys)
	}
	return m
}
