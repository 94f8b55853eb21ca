// Package meter makes the metrics of the edge's rooms: they share the prefix
// spillway_gateway_, start at zero for every label value, and are registered together.
// The edge, its door and package leave each make one Set when they are made.
package meter

import "github.com/prometheus/client_golang/prometheus"

const prefix = "spillway_gateway_"

// Set gathers collectors until Register.
type Set struct{ all []prometheus.Collector }

func add[C prometheus.Collector](s *Set, c C) C {
	s.all = append(s.all, c)
	return c
}

// Add takes a collector that its caller made, with a name that begins with the prefix.
func (s *Set) Add(c prometheus.Collector) { add(s, c) }

// Counter makes a counter; name is without the prefix.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return add(s, prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help}))
}

// Gauge makes a gauge.
func (s *Set) Gauge(name, help string) prometheus.Gauge {
	return add(s, prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help}))
}

// Func makes a gauge that is read from f.
func (s *Set) Func(name, help string, f func() float64) {
	add(s, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, f))
}

// Counters makes one counter for each value of a label; there are no others.
func (s *Set) Counters(name, help, label string, values []string) *prometheus.CounterVec {
	v := add(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label}))
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// Gauges makes one gauge for each value of a label; there are no others.
func (s *Set) Gauges(name, help, label string, values []string) *prometheus.GaugeVec {
	v := add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, []string{label}))
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// Register hands all to r; nil: to nobody.
func (s *Set) Register(r prometheus.Registerer) {
	if r != nil {
		r.MustRegister(s.all...)
	}
}
