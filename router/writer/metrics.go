package writer

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	failures      prometheus.Counter
	repeats       prometheus.Counter
	refused       prometheus.Counter
	commitSeconds prometheus.Histogram
	batchEvents   prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	const prefix = "spillway_router_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		failures:      counter("commit_failures_total", "Batches that could not be prepared because the store failed."),
		repeats:       counter("key_repeats_total", "Publishes whose key the store knew."),
		refused:       counter("events_refused_total", "Events whose content the store refused."),
		commitSeconds: histogram("commit_seconds", "Time of one batch in the store.", prometheus.ExponentialBuckets(0.00025, 2, 15)),
		batchEvents:   histogram("commit_events", "Events of one commit.", prometheus.ExponentialBuckets(1, 2, 11)),
	}
	if r != nil {
		r.MustRegister(m.failures, m.repeats, m.refused, m.commitSeconds, m.batchEvents)
	}
	return m
}
