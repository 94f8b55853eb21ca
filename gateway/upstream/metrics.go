package upstream

import "github.com/prometheus/client_golang/prometheus"

// outcome is how a question ended.
type outcome uint8

const (
	outcomeAnswered outcome = iota
	outcomeDeadline
	outcomeFailed   // the stream failed
	outcomeNoRouter // none could be reached
	outcomeFull     // too many unanswered
	numOutcomes
)

func (o outcome) String() string {
	return [...]string{"answered", "deadline", "stream_failed", "no_router", "too_many"}[o]
}

type metrics struct {
	streams       prometheus.Gauge
	open          prometheus.GaugeFunc
	answers       [numOutcomes]prometheus.Counter
	late          prometheus.Counter
	batches       prometheus.Counter
	fallbacks     prometheus.Counter
	callFallbacks prometheus.Counter
	latency       prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, open func() float64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_upstream_" + name, Help: help})
	}
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_upstream_questions_total", Help: "Questions to routers, by how they ended.",
	}, []string{"outcome"})
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spillway_upstream_streams", Help: "Open streams to routers.",
		}),
		open: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spillway_upstream_open_questions", Help: "Questions not answered.",
		}, open),
		late:          counter("late_answers_total", "Answers that came after their deadline."),
		batches:       counter("batches_total", "Messages of questions sent."),
		fallbacks:     counter("fallbacks_total", "Questions put to another router than the owner."),
		callFallbacks: counter("call_fallbacks_total", "Publishes and reads that a second router was tried for."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spillway_upstream_answer_seconds", Help: "From a question to its answer.",
			Buckets: []float64{.002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2},
		}),
	}
	for o := range numOutcomes {
		m.answers[o] = answers.WithLabelValues(o.String())
	}
	if r != nil {
		r.MustRegister(m.streams, m.open, answers, m.late, m.batches, m.fallbacks, m.callFallbacks, m.latency)
	}
	return m
}
