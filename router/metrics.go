package router

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	machine "github.com/spillway-io/spillway/router/channel"
)

type metrics struct {
	publishes     outcomeCounters
	storeCalls    storeCalls
	renewed       prometheus.Counter
	asks          askCounters
	handover      handoverCounters
	overflows     prometheus.Counter
	abandoned     prometheus.Counter
	repeats       prometheus.Counter
	races         prometheus.Counter
	refused       prometheus.Counter
	unknown       prometheus.Counter
	failures      prometheus.Counter
	storeBehind   prometheus.Counter
	claimsRefused prometheus.Counter
	evictions     prometheus.Counter
	fanned        prometheus.Counter
	headsRepeated prometheus.Counter
	trimmed       prometheus.Counter
	forgotten     prometheus.Counter
	readsRefused  prometheus.Counter
	readsRunning  prometheus.Gauge
	commitSeconds prometheus.Histogram
	batchEvents   prometheus.Histogram
	readRanges    prometheus.Histogram
}

// outcomeCounters is one counter for each way in which a publish ends.
type outcomeCounters struct{ ok, repeat, refused, overflow, unavailable, other prometheus.Counter }

func (o *outcomeCounters) of(res machine.Result) prometheus.Counter {
	switch {
	case res.Repeat:
		return o.repeat
	case res.Code == codes.OK:
		return o.ok
	case res.Code == codes.InvalidArgument:
		return o.refused
	case res.Code == codes.ResourceExhausted:
		return o.overflow
	case res.Code == codes.Unavailable:
		return o.unavailable
	}
	return o.other
}

type storeCalls struct{ append, heads, read, renew, trim, forget, keep prometheus.Counter }

type askCounters struct{ tail, store, unavailable prometheus.Counter }

// handoverCounters counts channels by what became of them, and what waited for them.
type handoverCounters struct {
	given, back, lost, taken, refused prometheus.Counter
	nobody, late, handed              prometheus.Counter
	takes, passed, turned, busy       prometheus.Counter
	waitSeconds                       prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, s *sizes) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_router_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_router_" + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "spillway_router_" + name, Help: help, Buckets: buckets})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_router_" + name, Help: help}, []string{label})
	}
	publishes := vec("publishes_total", "Publishes by outcome.", "outcome")
	calls := vec("store_calls_total", "Calls of the store by kind.", "call")
	renewed := vec("epochs_renewed_total", "Channels that began a new epoch, by cause.", "cause")
	// The api counts those that it refuses: all are counters with a constant label.
	asks := func(by string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spillway_router_asks_total", Help: "Asks of edges by who answered.", ConstLabels: prometheus.Labels{"by": by},
		})
	}
	moved := vec("handover_channels_total", "Channels by hand: given, back (not taken), lost (nobody knows), busy (not given, since the store did not answer), taken from others, refused as late or known.", "hand")
	waits := vec("handover_waits_total", "Channels that waited for a hand by the end of it: handed, nobody had it, late.", "end")
	m := &metrics{
		handover: handoverCounters{
			given: moved.WithLabelValues("given"), back: moved.WithLabelValues("back"), lost: moved.WithLabelValues("lost"),
			busy: moved.WithLabelValues("busy"), taken: moved.WithLabelValues("taken"), refused: moved.WithLabelValues("refused"),
			handed: waits.WithLabelValues("handed"), nobody: waits.WithLabelValues("nobody"), late: waits.WithLabelValues("late"),
			takes:       counter("handover_takes_total", "Questions to other routers for channels that are ours by now."),
			passed:      counter("handover_passed_total", "Publishes that had come to the wrong router, passed on."),
			turned:      counter("handover_turned_away_total", "Publishes told to come again, since the hand of their channel was not answered in time."),
			waitSeconds: histogram("handover_wait_seconds", "Time that a channel waited for its hand.", prometheus.ExponentialBuckets(0.0005, 2, 12)),
		},
		publishes: outcomeCounters{
			ok: publishes.WithLabelValues("ok"), repeat: publishes.WithLabelValues("repeat"),
			refused: publishes.WithLabelValues("refused"), overflow: publishes.WithLabelValues("overflow"),
			unavailable: publishes.WithLabelValues("unavailable"), other: publishes.WithLabelValues("other"),
		},
		storeCalls: storeCalls{
			append: calls.WithLabelValues("append"), heads: calls.WithLabelValues("heads"),
			read: calls.WithLabelValues("read"), renew: calls.WithLabelValues("renew"), trim: calls.WithLabelValues("trim"),
			forget: calls.WithLabelValues("forget"), keep: calls.WithLabelValues("keep"),
		},
		renewed: renewed.WithLabelValues("store_behind"),
		asks: askCounters{
			tail: asks("tail"), store: asks("store"),
			unavailable: asks("unavailable"),
		},
		overflows:     counter("publish_overflows_total", "Publishes refused because too many were waiting."),
		abandoned:     counter("publishes_abandoned_total", "Publishes dropped unstarted because their caller gave up."),
		repeats:       counter("key_repeats_total", "Publishes whose key the store knew."),
		races:         counter("races_lost_total", "Runs lost to another writer of the channel."),
		refused:       counter("events_refused_total", "Events whose content the store refused."),
		unknown:       counter("commits_unknown_total", "Commits that ended without a known outcome."),
		failures:      counter("commit_failures_total", "Batches that could not be prepared because the store failed."),
		storeBehind:   counter("store_behind_total", "Heads read, twice, below one that was seen before: lost history."),
		claimsRefused: counter("claims_refused_total", "Positions of edges above the store's that brought about no new epoch: too soon after the last one."),
		evictions:     counter("cache_evictions_total", "Channels evicted, with head and tail."),
		fanned:        counter("fanout_events_total", "Events put on the bus."),
		headsRepeated: counter("heads_repeated_total", "Heads of quiet channels repeated on the bus."),
		trimmed:       counter("trimmed_rows_total", "Events and keys deleted by retention."),
		forgotten:     counter("forgotten_channels_total", "Rows of channels that nobody used any more, deleted by retention."),
		readsRefused:  counter("reads_refused_total", "Reads refused because too many were waiting."),
		readsRunning:  gauge("running_store_reads", "Batches of reads in the store now."),
		commitSeconds: histogram("commit_seconds", "Time of one batch in the store.", prometheus.ExponentialBuckets(0.00025, 2, 15)),
		batchEvents:   histogram("commit_events", "Events of one commit.", prometheus.ExponentialBuckets(1, 2, 11)),
		readRanges:    histogram("read_batch_channels", "Channels of one batch of reads.", prometheus.ExponentialBuckets(1, 2, 11)),
	}
	if r != nil {
		r.MustRegister(moved, waits, m.handover.takes, m.handover.passed, m.handover.turned, m.handover.waitSeconds)
		r.MustRegister(publishes, calls, renewed, m.asks.tail, m.asks.store, m.asks.unavailable, m.overflows, m.abandoned, m.repeats, m.races, m.refused, m.unknown,
			m.failures, m.storeBehind, m.claimsRefused, m.evictions, m.fanned, m.headsRepeated, m.trimmed, m.forgotten,
			m.readsRefused, m.readsRunning, m.commitSeconds, m.batchEvents, m.readRanges)
		s.register(r)
	}
	return m
}

// sizes reads what is held now, for gauges.
type sizes struct {
	channels, cacheBytes, queueEvents, queueBytes, readQueue, readsPeak func() float64
}

func (s *sizes) register(r prometheus.Registerer) {
	gauge := func(name, help string, read func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_router_" + name, Help: help}, read))
	}
	gauge("channels", "Channels known in memory.", s.channels)
	gauge("cache_bytes", "Heads and hot tails.", s.cacheBytes)
	gauge("queue_events", "Publishes waiting or in flight.", s.queueEvents)
	gauge("queue_bytes", "Bytes of publishes waiting or in flight.", s.queueBytes)
	gauge("waiting_reads", "Reads waiting for the store.", s.readQueue)
	gauge("peak_store_reads", "Most batches of reads that were in the store at once.", s.readsPeak)
}
