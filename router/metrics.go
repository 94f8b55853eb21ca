package router

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

type metrics struct {
	publishes     outcomeCounters
	storeCalls    storeCalls
	renewed       prometheus.Counter
	asks          askCounters
	http          httpCounters
	handover      handoverCounters
	overflows     prometheus.Counter
	rateLimited   prometheus.Counter
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
	forwards      prometheus.Counter
	servedForDead prometheus.Counter
	trimmed       prometheus.Counter
	forgotten     prometheus.Counter
	readsRefused  prometheus.Counter
	answersShed   prometheus.Counter
	panics        prometheus.Counter
	readsRunning  prometheus.Gauge
	streams       prometheus.Gauge
	commitSeconds prometheus.Histogram
	batchEvents   prometheus.Histogram
	readRanges    prometheus.Histogram
}

// outcomeCounters is one counter for each way in which a publish ends.
type outcomeCounters struct{ ok, repeat, refused, overflow, unavailable, other prometheus.Counter }

func (o *outcomeCounters) of(res result) prometheus.Counter {
	switch {
	case res.repeat:
		return o.repeat
	case res.code == codes.OK:
		return o.ok
	case res.code == codes.InvalidArgument:
		return o.refused
	case res.code == codes.ResourceExhausted:
		return o.overflow
	case res.code == codes.Unavailable:
		return o.unavailable
	}
	return o.other
}

type storeCalls struct{ append, heads, read, renew, trim, forget, keep prometheus.Counter }

type askCounters struct{ tail, store, unavailable, refused prometheus.Counter }

// httpCounters is one counter for each way in which a request over HTTP ends.
type httpCounters struct{ ok, refused, failed, gone prometheus.Counter }

func (h *httpCounters) of(status int) prometheus.Counter {
	switch {
	case status < 400:
		return h.ok
	case status < 500:
		return h.refused
	}
	return h.failed
}

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
	asks := vec("asks_total", "Asks of edges by who answered.", "by")
	requests := vec("http_requests_total", "Requests over HTTP by answer: ok, refused (4xx), failed (5xx), or gone.", "answer")
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
		http: httpCounters{
			ok: requests.WithLabelValues("ok"), refused: requests.WithLabelValues("refused"),
			failed: requests.WithLabelValues("failed"), gone: requests.WithLabelValues("gone"),
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
			tail: asks.WithLabelValues("tail"), store: asks.WithLabelValues("store"),
			unavailable: asks.WithLabelValues("unavailable"), refused: asks.WithLabelValues("refused"),
		},
		overflows:     counter("publish_overflows_total", "Publishes refused because too many were waiting."),
		rateLimited:   counter("publishes_rate_limited_total", "Publishes refused because their namespace takes no more a second."),
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
		forwards:      counter("publishes_forwarded_total", "Publishes sent on to the owner of their channel."),
		servedForDead: counter("publishes_served_for_owner_total", "Publishes served here because the owner was away."),
		trimmed:       counter("trimmed_rows_total", "Events and keys deleted by retention."),
		forgotten:     counter("forgotten_channels_total", "Rows of channels that nobody used any more, deleted by retention."),
		readsRefused:  counter("reads_refused_total", "Reads refused because too many were waiting."),
		answersShed:   counter("answers_shed_total", "Answers replaced by UNAVAILABLE because the edge reads too slowly."),
		panics:        counter("panics_total", "Panics in calls, recovered."),
		readsRunning:  gauge("running_store_reads", "Batches of reads in the store now."),
		streams:       gauge("edge_streams", "Streams of edges."),
		commitSeconds: histogram("commit_seconds", "Time of one batch in the store.", prometheus.ExponentialBuckets(0.00025, 2, 15)),
		batchEvents:   histogram("commit_events", "Events of one commit.", prometheus.ExponentialBuckets(1, 2, 11)),
		readRanges:    histogram("read_batch_channels", "Channels of one batch of reads.", prometheus.ExponentialBuckets(1, 2, 11)),
	}
	if r != nil {
		r.MustRegister(moved, waits, m.handover.takes, m.handover.passed, m.handover.turned, m.handover.waitSeconds)
		r.MustRegister(publishes, calls, renewed, asks, requests, m.overflows, m.rateLimited, m.abandoned, m.repeats, m.races, m.refused, m.unknown,
			m.failures, m.storeBehind, m.claimsRefused, m.evictions, m.fanned, m.headsRepeated, m.forwards, m.servedForDead, m.trimmed, m.forgotten,
			m.readsRefused, m.answersShed, m.panics, m.readsRunning, m.streams, m.commitSeconds, m.batchEvents, m.readRanges)
		s.register(r)
	}
	return m
}

// sizes reads what is held now, for gauges.
type sizes struct {
	channels, cacheBytes, queueEvents, queueBytes, readQueue, readsPeak, httpBytes func() float64
}

func (s *sizes) register(r prometheus.Registerer) {
	gauge := func(name, help string, read func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_router_" + name, Help: help}, read))
	}
	gauge("channels", "Channels known in memory.", s.channels)
	gauge("cache_bytes", "Heads and hot tails.", s.cacheBytes)
	gauge("queue_events", "Publishes waiting or in flight.", s.queueEvents)
	gauge("queue_bytes", "Bytes of publishes waiting or in flight.", s.queueBytes)
	gauge("http_bytes", "Bodies of requests over HTTP.", s.httpBytes)
	gauge("waiting_reads", "Reads waiting for the store.", s.readQueue)
	gauge("peak_store_reads", "Most batches of reads that were in the store at once.", s.readsPeak)
}
