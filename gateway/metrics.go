package gateway

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-io/spillway/gateway/internal/meter"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
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
	conns, superseded   prometheus.Gauge
	takeoversLost       prometheus.Counter
	spentLost           prometheus.Counter
	late, badTokens     prometheus.Counter
	closes              *prometheus.CounterVec
	byCommand           [9]prometheus.Counter
	deliveries, dropped prometheus.Counter
	overflows, lagging  prometheus.Counter
	shed, gaps          prometheus.Counter
	reloads             *prometheus.CounterVec
	turn                prometheus.Histogram
	subscriptions       gaugeCount
}

// gaugeCount is a gauge that can be read back.
type gaugeCount struct{ n atomic.Int64 }

func (g *gaugeCount) Inc() { g.n.Add(1) }
func (g *gaugeCount) Dec() { g.n.Add(-1) }

var commandNames = [...]string{"connect", "subscribe", "unsubscribe", "publish", "history", "presence", "refresh", "ping", "other"}

func newMetrics(r prometheus.Registerer) *metrics {
	set := new(meter.Set)
	m := &metrics{
		conns:         set.Gauge("conns", "Connections that are held."),
		superseded:    set.Gauge("superseded_conns", "Connections that were left for another one of their session and are not closed yet."),
		takeoversLost: set.Counter("takeovers_lost_total", "Sessions welcomed here of which other edges could not be told."),
		spentLost:     set.Counter("spent_lost_tickets_total", "Tickets used here of which other edges could not be told."),
		late:          set.Counter("late_total", "Admitted clients that had gone, or waited too long for their loop."),
		badTokens:     set.Counter("bad_tokens_total", "Connect frames whose credentials were not good."),
		closes:        set.Counters("closed_total", "Connections that ended.", "reason", closeReasons),
		deliveries:    set.Counter("deliveries_total", "Events queued for connections."),
		dropped:       set.Counter("dropped_events_total", "Queued events let go because a connection's queue was full."),
		overflows:     set.Counter("overflows_total", "Times a connection's queue was full."),
		lagging:       set.Counter("lagging_total", "Times a subscription fell behind and was served from history."),
		shed:          set.Counter("shed_channels_total", "Times a loop was too far behind to take a channel's live events."),
		gaps:          set.Counter("gaps_total", "Gaps told to clients."),
		reloads:       set.Counters("reloads_total", "Changes of the settings.", "result", []string{reloadDone, reloadRefused}),
		tickets:       make(map[string]prometheus.Counter),
		turn: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spillway_gateway_turn_seconds", Help: "Time a loop needs for one turn.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10),
		}),
	}
	tickets := set.Counters("tickets_total", "Tickets, by what came of them.", "outcome", ticketOutcomes)
	for _, outcome := range ticketOutcomes {
		m.tickets[outcome] = tickets.WithLabelValues(outcome)
	}
	commands := set.Counters("commands_total", "Commands of clients.", "type", commandNames[:])
	for i, name := range commandNames {
		m.byCommand[i] = commands.WithLabelValues(name)
	}
	set.Add(m.turn)
	set.Func("subscriptions", "Subscriptions of connections.", func() float64 { return float64(m.subscriptions.n.Load()) })
	set.Register(r)
	return m
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
