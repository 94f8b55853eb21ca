package operations

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/router/operations/settle"
)

// settleMetrics tell the incidents of the regions that this router owns. The label
// region is bounded: a tracker keeps 32.
type settleMetrics struct {
	seconds                    *prometheus.HistogramVec
	running                    *prometheus.GaugeVec
	displaced, back, neverBack *prometheus.CounterVec
	unsettled                  prometheus.Counter
	dropped                    prometheus.Gauge
}

func newSettleMetrics(r prometheus.Registerer) settleMetrics {
	causes := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_router_settle_" + name, Help: help}, []string{"cause"})
		for _, kind := range settle.Kinds {
			v.WithLabelValues(kind)
		}
		return v
	}
	m := settleMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_router_settle_seconds", Help: "Time from the start of an incident until the rate of new connections was the usual one.",
			Buckets: []float64{0.2, 0.5, 1, 2, 5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 180, 300, 540},
		}, []string{"region"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spillway_router_settle_running_incidents", Help: "Incidents that have not settled.",
		}, []string{"region"}),
		displaced: causes("displaced_total", "Clients displaced by incidents that began five minutes ago."),
		back:      causes("back_total", "Of those, resumed within five minutes."),
		neverBack: causes("never_back_total", "Of those, not resumed within five minutes."),
		unsettled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spillway_router_settle_unsettled_total", Help: "Incidents that did not settle within nine minutes.",
		}),
		dropped: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spillway_router_settle_dropped_items", Help: "Windows, edges, regions and causes left out since the start: too late or too many.",
		}),
	}
	if r != nil {
		r.MustRegister(m.seconds, m.running, m.displaced, m.back, m.neverBack, m.unsettled, m.dropped)
	}
	return m
}

// tell counts what is new in regions that are ours to tell.
func (m *settleMetrics) tell(news settle.News, running map[string]int, dropped uint64, mine func(region string) bool) {
	for region, n := range running {
		m.seconds.WithLabelValues(region)
		if !mine(region) {
			n = 0
		}
		m.running.WithLabelValues(region).Set(float64(n))
	}
	for _, s := range news.Settled {
		if mine(s.Region) {
			m.seconds.WithLabelValues(s.Region).Observe(s.After.Seconds())
		}
	}
	for _, region := range news.Unsettled {
		if mine(region) {
			m.unsettled.Inc()
		}
	}
	for _, l := range news.Lapsed {
		if mine(l.Region) {
			m.displaced.WithLabelValues(l.Kind).Add(float64(l.Displaced))
			m.back.WithLabelValues(l.Kind).Add(float64(l.Back))
			m.neverBack.WithLabelValues(l.Kind).Add(float64(l.NeverBack))
		}
	}
	m.dropped.Set(float64(dropped))
}
