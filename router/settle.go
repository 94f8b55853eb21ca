package router

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/presence"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/operations/settle"
)

const (
	settleEvery = time.Second
	// settleChannel and a region are no channel: its owner is the router whose metrics
	// tell that region's incidents. All routers keep the windows and can be asked.
	settleChannel = "\x00settle/"
)

// settling is the settle times of the regions, as this router hears of them.
type settling struct {
	metrics settleMetrics
	start   time.Time // immutable

	mu      sync.Mutex // guards tracker; held for microseconds
	tracker *settle.Tracker
}

func newSettling(r prometheus.Registerer) *settling {
	return &settling{metrics: newSettleMetrics(r), start: time.Now(), tracker: settle.New()}
}

// now is the wall clock of the start, carried on by the monotonic one: windows must
// not jump.
func (s *settling) now() time.Time { return s.start.Add(time.Since(s.start)) }

// Heard takes every load figure that comes; from any goroutine.
func (r *Router) Heard(f *presence.Figure) {
	s := r.settling
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.Hear(f, s.now())
}

// Gone takes every member that is no more; from any goroutine.
func (r *Router) Gone(m *presence.Member, left bool) {
	if m.Role != gatewayv1.Role_ROLE_EDGE {
		return
	}
	s := r.settling
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.Gone(m.Id, m.Incarnation, left, s.now())
}

// settle looks for incidents once a second until ctx ends.
func (r *Router) settle(ctx context.Context) error {
	for pause(ctx, settleEvery) {
		news, running, dropped := r.settling.step(r.operations())
		r.settling.metrics.tell(news, running, dropped, func(region string) bool { return r.own.owned(settleChannel + region) })
	}
	return nil
}

func (r *Router) operations() []*gatewayv1.Operation {
	if r.control == nil {
		return nil
	}
	return r.control.Operations()
}

// step returns what is new, how many incidents of each region are not settled, and
// what was left out so far.
func (s *settling) step(ops []*gatewayv1.Operation) (news settle.News, running map[string]int, dropped uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.Operations(ops)
	news = s.tracker.Step(s.now())
	running = make(map[string]int)
	for _, region := range s.tracker.Regions() {
		running[region] = s.tracker.Running(region)
	}
	return news, running, s.tracker.Dropped()
}

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
