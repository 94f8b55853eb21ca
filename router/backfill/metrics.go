package backfill

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	refused       prometheus.Counter
	claimsRefused prometheus.Counter
	running       prometheus.Gauge
	ranges        prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, b *Backfill) *metrics {
	const prefix = "spillway_router_"
	m := &metrics{
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "reads_refused_total", Help: "Reads refused because too many were waiting."}),
		claimsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "claims_refused_total", Help: "Positions of edges above ours that brought about no new epoch, too soon after the last one; by who numbers the channel.",
			ConstLabels: prometheus.Labels{"by": "store"},
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "running_store_reads", Help: "Batches of reads in the store now."}),
		ranges: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "read_batch_channels", Help: "Channels of one batch of reads.", Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
	}
	if r != nil {
		r.MustRegister(m.refused, m.claimsRefused, m.running, m.ranges,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "waiting_reads", Help: "Reads waiting for the store."}, func() float64 { return float64(b.Depth()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "peak_store_reads", Help: "Most batches of reads that were in the store at once."}, func() float64 { return float64(b.peak.Load()) }))
	}
	return m
}
