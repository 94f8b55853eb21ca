package gateway

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// Why a client was refused before it had a conn.
const (
	refusedDescriptors = "descriptors" // none left: reset
	refusedDoor        = "door"        // too many half-open: reset
	refusedRequest     = "request"     // not a good request
	refusedSlow        = "slow"        // the request did not come in time
	refusedReset       = "reset"       // past the budget of refusals: reset
	refusedTLS         = "tls_budget"  // no TLS handshake in time: reset
	refusedHandshake   = "tls"         // the TLS handshake failed
)

// How a reload ended.
const (
	reloadDone    = "done"
	reloadRefused = "refused"
)

// What came of tickets.
const (
	ticketMinted    = "minted"
	ticketNotMinted = "not_minted" // no key yet, or too large
	ticketOpened    = "opened"     // and gave an identity
	ticketExpired   = "expired"
	ticketNotGood   = "not_good"
	ticketRevoked   = "revoked"
)

var ticketOutcomes = []string{ticketMinted, ticketNotMinted, ticketOpened, ticketExpired, ticketNotGood, ticketRevoked}

type metrics struct {
	tickets             map[string]prometheus.Counter
	superseded          prometheus.Gauge
	takeoversLost       prometheus.Counter
	conns, handshakes   prometheus.Gauge
	accepted, badTokens prometheus.Counter
	admissionMetrics
	refusals, closes, commands                    *prometheus.CounterVec
	deliveries, dropped, overflows, lagging, shed prometheus.Counter
	gaps                                          prometheus.Counter
	turn                                          prometheus.Histogram
	subscriptions                                 gaugeCount
	handover                                      handoverMetrics
	byCommand                                     [9]prometheus.Counter
	series                                        *series // set by newEdge
}

// gaugeCount is a gauge that can be read back.
type gaugeCount struct{ n atomic.Int64 }

func (g *gaugeCount) Inc() { g.n.Add(1) }
func (g *gaugeCount) Dec() { g.n.Add(-1) }

var commandNames = [...]string{"connect", "subscribe", "unsubscribe", "publish", "history", "presence", "refresh", "ping", "other"}

func newMetrics(r prometheus.Registerer) *metrics {
	var all []prometheus.Collector
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_gateway_" + name, Help: help})
		all = append(all, c)
		return c
	}
	vec := func(name, help, label string, values []string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_gateway_" + name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		all = append(all, v)
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_gateway_" + name, Help: help})
		all = append(all, g)
		return g
	}
	m := &metrics{
		conns:      gauge("conns", "Connections that are held."),
		handshakes: gauge("handshakes", "Sockets accepted and not yet admitted or gone."),
		accepted:   counter("accepted_total", "Sockets accepted."),
		badTokens:  counter("bad_tokens_total", "Connect frames whose credentials were not good."),
		refusals: vec("refused_total", "Clients refused before they had a connection.", "reason",
			append([]string{refusedDescriptors, refusedDoor, refusedRequest, refusedSlow, refusedReset, refusedTLS, refusedHandshake}, causeNames()...)),
		closes:     vec("closed_total", "Connections that ended.", "reason", closeReasons),
		commands:   vec("commands_total", "Commands of clients.", "type", commandNames[:]),
		deliveries: counter("deliveries_total", "Events queued for connections."),
		dropped:    counter("dropped_events_total", "Queued events let go because a connection's queue was full."),
		overflows:  counter("overflows_total", "Times a connection's queue was full."),
		lagging:    counter("lagging_total", "Times a subscription fell behind and was served from history."),
		shed:       counter("shed_channels_total", "Times a loop was too far behind to take a channel's live events."),
		gaps:       counter("gaps_total", "Gaps told to clients."),
		turn: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spillway_gateway_turn_seconds", Help: "Time a loop needs for one turn.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10),
		}),
	}
	tickets := vec("tickets_total", "Tickets, by what came of them.", "outcome", ticketOutcomes)
	m.tickets = make(map[string]prometheus.Counter)
	for _, outcome := range ticketOutcomes {
		m.tickets[outcome] = tickets.WithLabelValues(outcome)
	}
	m.admissionMetrics = newAdmissionMetrics(counter, gauge, vec)
	m.superseded = gauge("superseded_conns", "Connections that were left for another one of their session and are not closed yet.")
	m.takeoversLost = counter("takeovers_lost_total", "Sessions welcomed here of which other edges could not be told.")
	m.handover = newHandoverMetrics(&all)
	for i, name := range commandNames {
		m.byCommand[i] = m.commands.WithLabelValues(name)
	}
	all = append(all, m.turn, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_gateway_subscriptions", Help: "Subscriptions of connections.",
	}, func() float64 { return float64(m.subscriptions.n.Load()) }))
	if r != nil {
		r.MustRegister(all...)
	}
	return m
}

// refused counts a refusal, and in the windows of the load figure if load was why.
func (m *metrics) refused(reason string) {
	m.refusals.WithLabelValues(reason).Inc()
	switch reason {
	case refusedRequest, refusedSlow, refusedHandshake:
	case refusedDescriptors, refusedDoor, refusedReset, refusedTLS:
		m.series.add(countReset)
	default:
		m.series.add(countRefused)
	}
}

func (m *metrics) ticket(outcome string) { m.tickets[outcome].Inc() }

func (m *metrics) subscriptionCount() int64 { return max(m.subscriptions.n.Load(), 0) }

func (m *metrics) command(f *clientv1.ClientFrame) {
	i := len(commandNames) - 1
	switch f.Frame.(type) {
	case *clientv1.ClientFrame_Connect:
		i = 0
	case *clientv1.ClientFrame_Subscribe:
		i = 1
	case *clientv1.ClientFrame_Unsubscribe:
		i = 2
	case *clientv1.ClientFrame_Publish:
		i = 3
	case *clientv1.ClientFrame_History:
		i = 4
	case *clientv1.ClientFrame_Presence:
		i = 5
	case *clientv1.ClientFrame_Refresh:
		i = 6
	case *clientv1.ClientFrame_Ping:
		i = 7
	}
	m.byCommand[i].Inc()
}
