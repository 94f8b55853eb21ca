package api

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	http          httpCounters
	asksRefused   prometheus.Counter
	rateLimited   prometheus.Counter
	forwards      prometheus.Counter
	servedForDead prometheus.Counter
	answersShed   prometheus.Counter
	panics        prometheus.Counter
	streams       prometheus.Gauge
}

// httpCounters is one counter for each way in which a request over HTTP ends.
type httpCounters struct{ ok, refused, failed, gone prometheus.Counter }

func (h *httpCounters) of(status int) prometheus.Counter {
	switch {
	case status < 400:
		return h.ok
	case status < 500:
		return h.refused
	}
	return h.failed
}

// newMetrics registers them; httpBytes reads the bodies that are held now.
func newMetrics(r prometheus.Registerer, httpBytes func() float64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_router_" + name, Help: help})
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_router_http_requests_total", Help: "Requests over HTTP by answer: ok, refused (4xx), failed (5xx), or gone.",
	}, []string{"answer"})
	m := &metrics{
		http: httpCounters{
			ok: requests.WithLabelValues("ok"), refused: requests.WithLabelValues("refused"),
			failed: requests.WithLabelValues("failed"), gone: requests.WithLabelValues("gone"),
		},
		asksRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spillway_router_asks_total", Help: "Asks of edges by who answered.", ConstLabels: prometheus.Labels{"by": "refused"},
		}),
		rateLimited:   counter("publishes_rate_limited_total", "Publishes refused because their namespace takes no more a second."),
		forwards:      counter("publishes_forwarded_total", "Publishes sent on to the owner of their channel."),
		servedForDead: counter("publishes_served_for_owner_total", "Publishes served here because the owner was away."),
		answersShed:   counter("answers_shed_total", "Answers replaced by UNAVAILABLE because the edge reads too slowly."),
		panics:        counter("panics_total", "Panics in calls, recovered."),
		streams:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_router_edge_streams", Help: "Streams of edges."}),
	}
	if r != nil {
		r.MustRegister(requests, m.asksRefused, m.rateLimited, m.forwards, m.servedForDead, m.answersShed, m.panics, m.streams,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_router_http_bytes", Help: "Bodies of requests over HTTP."}, httpBytes))
	}
	return m
}
