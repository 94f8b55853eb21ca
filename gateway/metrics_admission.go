package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/admission"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// admissionMetrics tell who comes in, who does not, and why. Refusals by cause are in
// refused_total.
type admissionMetrics struct {
	admitted                           map[admission.Lane]prometheus.Counter
	waiting                            map[admission.Lane]prometheus.Gauge
	passes, granted, headroom, ceiling prometheus.Gauge
	memoryRoom                         prometheus.Gauge
	grants                             map[string]prometheus.Counter
	hungUp, late, acceptPauses         prometheus.Counter
	tlsHandshakes                      prometheus.Counter
	knocking                           prometheus.Gauge
	waited, waiteds                    prometheus.Counter
	spentBytes                         prometheus.Gauge
	spentTwice, spentLost              prometheus.Counter
	spentDropped                       prometheus.Counter
	spentKnown                         uint64 // that spentDropped counts; owned by the door
	reloads                            *prometheus.CounterVec
}

// Outcomes of a request for room.
const (
	grantWhole   = "whole"
	grantPart    = "part"
	grantNothing = "nothing"
)

func newAdmissionMetrics(
	counter func(name, help string) prometheus.Counter, gauge func(name, help string) prometheus.Gauge,
	vec func(name, help, label string, values []string) *prometheus.CounterVec,
) admissionMetrics {
	var lanes []string
	for _, l := range admission.Lanes() {
		lanes = append(lanes, l.String())
	}
	admitted := vec("admitted_total", "Connections admitted, by lane.", "lane", lanes)
	grants := vec("grant_requests_total", "Requests of leaving edges for room here, by what they got.", "outcome",
		[]string{grantWhole, grantPart, grantNothing})
	m := admissionMetrics{
		admitted: make(map[admission.Lane]prometheus.Counter), waiting: make(map[admission.Lane]prometheus.Gauge),
		grants:        make(map[string]prometheus.Counter),
		passes:        gauge("due_passes", "Passes given out and not yet due."),
		granted:       gauge("granted_conns", "Confirmed grants whose clients have not come."),
		headroom:      gauge("headroom_conns", "Connections that fresh clients could fill now, grants taken off."),
		memoryRoom:    gauge("memory_room_conns", "Connections that memory allows; limits.max_conns if it allows more."),
		ceiling:       gauge("admission_ceiling_ratio", "Part of the resume and fresh rates that is given out."),
		hungUp:        counter("hung_up_total", "Clients that hung up before they were admitted or refused."),
		late:          counter("late_total", "Admitted clients that had gone, or waited too long for their loop."),
		acceptPauses:  counter("accept_pauses_total", "Times that nobody was accepted for a moment, past all budgets of refusals."),
		tlsHandshakes: counter("tls_handshakes_total", "TLS handshakes begun."),
		knocking:      gauge("waiting_tls_conns", "Clients that wait for their TLS handshake."),
		spentBytes:    gauge("spent_tickets_bytes", "Memory of which tickets that are good once were used."),
		spentDropped:  counter("spent_dropped_tickets_total", "Used tickets forgotten before their time."),
		spentTwice:    counter("spent_twice_tickets_total", "Tickets used here and at another edge, before either had heard of it."),
		spentLost:     counter("spent_lost_tickets_total", "Tickets used here of which other edges could not be told."),
		waiteds:       counter("admitted_after_wait_total", "Connections admitted out of the waiting room."),
		waited:        counter("wait_seconds_total", "Time that admitted clients spent in the waiting room."),
		reloads:       vec("reloads_total", "Changes of the settings.", "result", []string{reloadDone, reloadRefused}),
	}
	for _, l := range admission.Lanes() {
		m.admitted[l] = admitted.WithLabelValues(l.String())
		m.waiting[l] = gauge("waiting_"+l.String()+"_conns", "Clients in the waiting room, lane "+l.String()+".")
	}
	for _, outcome := range []string{grantWhole, grantPart, grantNothing} {
		m.grants[outcome] = grants.WithLabelValues(outcome)
	}
	return m
}

func causeNames() []string {
	var names []string
	for _, c := range admission.Causes() {
		names = append(names, c.String())
	}
	return names
}

func (m *metrics) admit(d admission.Decision) {
	m.admitted[d.Lane].Inc()
	if d.Waited > 0 {
		m.waiteds.Inc()
		m.waited.Add(d.Waited.Seconds())
	}
	switch d.Lane {
	case admission.LaneMoved:
		m.series.add(countMoved)
	case admission.LaneResume:
		m.series.add(countResumed)
	default:
		m.series.add(countFresh)
	}
}

func (m *metrics) refusedBy(c admission.Cause) { m.refused(c.String()) }

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

// atDoor takes what the gate says, a few times a second.
func (m *metrics) atDoor(s admission.Status, memoryRoom int) {
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
