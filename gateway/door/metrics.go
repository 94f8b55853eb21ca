package door

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/admission"
	"github.com/spillway-io/spillway/gateway/internal/meter"
	"github.com/spillway-io/spillway/gateway/load"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Why a client was refused before it had a conn; admission.Cause names the other reasons.
const (
	refusedDescriptors = "descriptors" // none left: reset
	refusedDoor        = "door"        // too many half-open: reset
	refusedRequest     = "request"     // not a good request
	refusedSlow        = "slow"        // the request did not come in time
	refusedReset       = "reset"       // past the budget of refusals: reset
	refusedTLS         = "tls_budget"  // no TLS handshake in time: reset
	refusedHandshake   = "tls"         // the TLS handshake failed
)

// Outcomes of a request for room.
const (
	grantWhole   = "whole"
	grantPart    = "part"
	grantNothing = "nothing"
)

// metrics tell who comes in, who does not, and why.
type metrics struct {
	accepted      prometheus.Counter
	handshakes    prometheus.Gauge
	refusals      *prometheus.CounterVec
	hungUp        prometheus.Counter
	acceptPauses  prometheus.Counter
	tlsHandshakes prometheus.Counter
	tlsWaiting    prometheus.Gauge

	admitted map[admission.Lane]prometheus.Counter
	waiting  map[admission.Lane]prometheus.Gauge
	waited   prometheus.Counter // seconds
	waiteds  prometheus.Counter
	grants   map[string]prometheus.Counter

	passes, granted, headroom, ceiling, memoryRoom prometheus.Gauge

	spentBytes   prometheus.Gauge
	spentDropped prometheus.Counter
	spentTwice   prometheus.Counter
	spentKnown   uint64 // that spentDropped counts; owned by the door

	series *load.Series // the windows of the load figure
}

func newMetrics(r prometheus.Registerer, series *load.Series) *metrics {
	set := new(meter.Set)
	reasons := []string{refusedDescriptors, refusedDoor, refusedRequest, refusedSlow, refusedReset, refusedTLS, refusedHandshake}
	for _, c := range admission.Causes() {
		reasons = append(reasons, c.String())
	}
	m := &metrics{
		accepted:      set.Counter("accepted_total", "Sockets accepted."),
		handshakes:    set.Gauge("handshakes", "Sockets accepted and not yet admitted or gone."),
		refusals:      set.Counters("refused_total", "Clients refused before they had a connection.", "reason", reasons),
		hungUp:        set.Counter("hung_up_total", "Clients that hung up before they were admitted or refused."),
		acceptPauses:  set.Counter("accept_pauses_total", "Times that nobody was accepted for a moment, past all budgets of refusals."),
		tlsHandshakes: set.Counter("tls_handshakes_total", "TLS handshakes begun."),
		tlsWaiting:    set.Gauge("waiting_tls_conns", "Clients that wait for their TLS handshake."),

		admitted: make(map[admission.Lane]prometheus.Counter), waiting: make(map[admission.Lane]prometheus.Gauge),
		waited:  set.Counter("wait_seconds_total", "Time that admitted clients spent in the waiting room."),
		waiteds: set.Counter("admitted_after_wait_total", "Connections admitted out of the waiting room."),
		grants:  make(map[string]prometheus.Counter),

		passes:     set.Gauge("due_passes", "Passes given out and not yet due."),
		granted:    set.Gauge("granted_conns", "Confirmed grants whose clients have not come."),
		headroom:   set.Gauge("headroom_conns", "Connections that fresh clients could fill now, grants taken off."),
		ceiling:    set.Gauge("admission_ceiling_ratio", "Part of the resume and fresh rates that is given out."),
		memoryRoom: set.Gauge("memory_room_conns", "Connections that memory allows; limits.max_conns if it allows more."),

		spentBytes:   set.Gauge("spent_tickets_bytes", "Memory of which tickets that are good once were used."),
		spentDropped: set.Counter("spent_dropped_tickets_total", "Used tickets forgotten before their time."),
		spentTwice:   set.Counter("spent_twice_tickets_total", "Tickets used here and at another edge, before either had heard of it."),

		series: series,
	}
	var lanes []string
	for _, l := range admission.Lanes() {
		lanes = append(lanes, l.String())
	}
	admitted := set.Counters("admitted_total", "Connections admitted, by lane.", "lane", lanes)
	for _, l := range admission.Lanes() {
		m.admitted[l] = admitted.WithLabelValues(l.String())
		m.waiting[l] = set.Gauge("waiting_"+l.String()+"_conns", "Clients in the waiting room, lane "+l.String()+".")
	}
	outcomes := []string{grantWhole, grantPart, grantNothing}
	grants := set.Counters("grant_requests_total", "Requests of leaving edges for room here, by what they got.", "outcome", outcomes)
	for _, outcome := range outcomes {
		m.grants[outcome] = grants.WithLabelValues(outcome)
	}
	set.Register(r)
	return m
}

// refused counts a refusal, and in the windows of the load figure if load was why.
func (m *metrics) refused(reason string) {
	m.refusals.WithLabelValues(reason).Inc()
	switch reason {
	case refusedRequest, refusedSlow, refusedHandshake:
	case refusedDescriptors, refusedDoor, refusedReset, refusedTLS:
		m.series.Add(load.Reset)
	default:
		m.series.Add(load.Refused)
	}
}

func (m *metrics) admit(d admission.Decision) {
	m.admitted[d.Lane].Inc()
	if d.Waited > 0 {
		m.waiteds.Inc()
		m.waited.Add(d.Waited.Seconds())
	}
	switch d.Lane {
	case admission.LaneMoved:
		m.series.Add(load.Moved)
	case admission.LaneResume:
		m.series.Add(load.Resumed)
	default:
		m.series.Add(load.Fresh)
	}
}

func (m *metrics) offered(o *gatewayv1.GrantOffer) {
	switch {
	case o.Reason == "":
		m.grants[grantWhole].Inc()
	case o.Movable+o.Unmovable > 0:
		m.grants[grantPart].Inc()
	default:
		m.grants[grantNothing].Inc()
	}
}

// show takes what the gate says, a few times a second.
func (m *metrics) show(s admission.Status, memoryRoom int) {
	m.memoryRoom.Set(float64(memoryRoom))
	for _, l := range admission.Lanes() {
		m.waiting[l].Set(float64(s.Waiting[l]))
	}
	m.passes.Set(float64(s.Passes))
	m.granted.Set(float64(s.Granted))
	m.headroom.Set(float64(s.Headroom))
	m.ceiling.Set(s.Ceiling)
	m.spentBytes.Set(float64(s.SpentBytes))
	m.spentDropped.Add(float64(s.SpentDropped - m.spentKnown))
	m.spentKnown = s.SpentDropped
}
