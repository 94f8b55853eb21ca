package feed

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	carried     atomic.Int64 // as channels, to be read
	channels    prometheus.Gauge
	table       prometheus.Gauge
	held        prometheus.Gauge
	waiting     prometheus.Gauge
	turns       prometheus.Gauge
	repairBytes prometheus.Gauge
	asks        [numAskKinds]prometheus.Counter
	pending     prometheus.Counter
	gaps        map[Reason]prometheus.Counter
	renewals    prometheus.Counter
	badBus      prometheus.Counter // unreadable
	noFeed      prometheus.Counter // no such channel
	counts      [numCounts]prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_feed_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_feed_" + name, Help: help})
	}
	vec := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_feed_" + name, Help: help}, []string{label})
	}
	asks := vec("asks_total", "kind", "Questions put to routers: pulls of subscribers, repairs, checks of heads.")
	gaps := vec("gaps_total", "reason", "Times that live subscribers were told of lost events or of a new epoch.")
	drops := vec("dropped_events_total", "reason", "Events of the bus that were not delivered from it; whatever was missing is fetched.")
	m := &metrics{
		channels:    gauge("channels", "Channels carried, lingering ones included."),
		table:       gauge("table_bytes", "The table of positions: about what its channels cost while they are quiet."),
		held:        gauge("held_bytes", "Encoded events kept behind holes and unanswered questions."),
		waiting:     gauge("questions", "Questions put to routers and not answered."),
		turns:       gauge("waiting_repairs", "Channels that wait for the repair budget."),
		repairBytes: gauge("repair_bytes", "Data that repairs may be bringing now: a chunk for each that runs."),
		pending:     counter("pending_total", "Subscribers told that the router cannot answer now."),
		renewals:    counter("renewals_total", "Interests told to the bus anew."),
		gaps:        make(map[Reason]prometheus.Counter),
	}
	for k := range numAskKinds {
		m.asks[k] = asks.WithLabelValues(k.String())
	}
	for _, reason := range []Reason{ReasonHistory, ReasonNoHistory, ReasonEpoch} {
		m.gaps[reason] = gaps.WithLabelValues(reason)
	}
	m.counts = [numCounts]prometheus.Counter{
		countEvents:     counter("events_total", "Events delivered in order, each once whatever the number of subscribers."),
		countDuplicates: drops.WithLabelValues("duplicate"),
		countStale:      drops.WithLabelValues("stale_epoch"),
		countHoldFull:   drops.WithLabelValues("hold_full"),
		countTurn:       drops.WithLabelValues("waits_for_repair"),
		countIdle:       drops.WithLabelValues("lingering"),
		countHoles:      counter("holes_total", "Jumps in the flow of a channel."),
		countRepairs:    counter("repairs_total", "Holes that time did not fill."),
		countBehind:     counter("found_behind_total", "Repairs that only a check of the head brought about."),
		countPutOff:     counter("repetitions_put_off_total", "Times that a question was due again and the pace of repetitions was used up."),
		countBadAnswers: counter("bad_answers_total", "Answers that contradict themselves or what the bus showed."),
	}
	m.noFeed = drops.WithLabelValues("no_interest")
	m.badBus = drops.WithLabelValues("unreadable")
	if r != nil {
		r.MustRegister(m.channels, m.table, m.held, m.waiting, m.turns, m.repairBytes, m.pending, m.renewals, asks, gaps, drops,
			m.counts[countEvents], m.counts[countHoles], m.counts[countRepairs], m.counts[countBehind], m.counts[countPutOff], m.counts[countBadAnswers])
	}
	return m
}

// registerQueues tells of what the shards of t have not taken yet; asked for when it
// is read, since a shard that stands still tells nothing.
func registerQueues(r prometheus.Registerer, t *Table) {
	if r == nil {
		return
	}
	sum := func() (bytes int, dropped uint64) {
		for _, s := range t.shards {
			b, d := s.backlog.state()
			bytes, dropped = bytes+b, dropped+d
		}
		return bytes, dropped
	}
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spillway_feed_queue_bytes", Help: "Messages of the bus that wait for their shard.",
		}, func() float64 { bytes, _ := sum(); return float64(bytes) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "spillway_feed_queue_drops_total", Help: "Messages of the bus that found the queue of their shard full; what they brought is fetched.",
		}, func() float64 { _, dropped := sum(); return float64(dropped) }),
	)
}
