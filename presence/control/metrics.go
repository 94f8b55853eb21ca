package control

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	keys        prometheus.Gauge
	revocations prometheus.Gauge
	operations  prometheus.Gauge
	folded      prometheus.Counter
	heard       prometheus.Counter
	unreadable  prometheus.Counter
	lists       prometheus.Counter
	wentBack    prometheus.Counter
	mended      prometheus.Counter
	failures    prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_control_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_control_" + name, Help: help})
	}
	m := &metrics{
		keys:        gauge("ticket_keys", "Keys of the ring that this member knows; 0: no tickets yet."),
		revocations: gauge("revocations", "Revocations and disconnects in memory."),
		operations:  gauge("running_operations", "Operations that run or are held."),
		folded:      counter("revocations_folded_total", "Revocations of a token that revoked all of its user, since there were too many."),
		heard:       counter("revocations_heard_total", "Revocations that came on the bus."),
		unreadable:  counter("records_unreadable_total", "Records and words on the bus that were not understood."),
		lists:       counter("lists_total", "Full listings; all but the first are restarts of the watch."),
		wentBack:    counter("went_back_total", "Listings older than what was known before: a restored store."),
		mended:      counter("records_mended_total", "Records that a restored store had forgotten, written back."),
		failures:    counter("write_failures_total", "Writes that failed because the store did."),
	}
	if r != nil {
		r.MustRegister(m.keys, m.revocations, m.operations, m.folded, m.heard, m.unreadable, m.lists, m.wentBack, m.mended, m.failures)
	}
	return m
}
