package table

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/router/channel"
)

type metrics struct {
	publishes     outcomeCounters
	counted       [channel.Counters]prometheus.Counter
	abandoned     prometheus.Counter
	evictions     prometheus.Counter
	fanned        prometheus.Counter
	headsRepeated prometheus.Counter
}

// outcomeCounters is one counter for each way in which a publish ends.
type outcomeCounters struct{ ok, repeat, refused, overflow, unavailable, other prometheus.Counter }

func (o *outcomeCounters) of(res *channel.Result) prometheus.Counter {
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

func newMetrics(r prometheus.Registerer, t *Table) *metrics {
	const prefix = "spillway_router_"
	var all []prometheus.Collector
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
		all = append(all, c)
		return c
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
		all = append(all, v)
		return v
	}
	gauge := func(name, help string, read func() int64) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, func() float64 { return float64(read()) }))
	}
	publishes := vec("publishes_total", "Publishes by outcome.", "outcome")
	// The api counts those that it refuses: all are counters with a constant label.
	asks := func(by string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "asks_total", Help: "Asks of edges by who answered.", ConstLabels: prometheus.Labels{"by": by},
		})
		all = append(all, c)
		return c
	}
	waits := vec("handover_waits_total", "Channels that waited to be handed over by the end of it: handed, nobody had it, late.", "end")
	arrived := vec("handover_arrivals_total", "Channels that other routers handed over: taken, or refused as late or known.", "result")
	m := &metrics{
		publishes: outcomeCounters{
			ok: publishes.WithLabelValues("ok"), repeat: publishes.WithLabelValues("repeat"),
			refused: publishes.WithLabelValues("refused"), overflow: publishes.WithLabelValues("overflow"),
			unavailable: publishes.WithLabelValues("unavailable"), other: publishes.WithLabelValues("other"),
		},
		abandoned:     counter("publishes_abandoned_total", "Publishes dropped unstarted because their caller gave up."),
		evictions:     counter("cache_evictions_total", "Channels evicted, with head and tail."),
		fanned:        counter("fanout_events_total", "Events put on the bus."),
		headsRepeated: counter("heads_repeated_total", "Heads of quiet channels repeated on the bus."),
	}
	claims := prometheus.NewCounter(prometheus.CounterOpts{ // router/backfill has those of the store
		Name: prefix + "claims_refused_total", Help: "Positions of edges above ours that brought about no new epoch, too soon after the last one; by who numbers the channel.",
		ConstLabels: prometheus.Labels{"by": "memory"},
	})
	all = append(all, claims)
	m.counted = [channel.Counters]prometheus.Counter{
		channel.PublicationsTurned: counter("handover_turned_away_total", "Publishes told to come again, since the router that their channel was handed over to did not answer in time."),
		channel.PublicationsPassed: counter("handover_passed_total", "Publishes that had come to the wrong router, passed on."),
		channel.AsksFromTail:       asks("tail"),
		channel.AsksFromStore:      asks("store"),
		channel.AsksUnavailable:    asks("unavailable"),
		channel.ClaimsRefused:      claims,
		channel.RacesLost:          counter("races_lost_total", "Runs lost to another writer of the channel."),
		channel.OutcomesUnknown:    counter("commits_unknown_total", "Runs that ended without a known outcome."),
		channel.HandoversArrived:   waits.WithLabelValues("handed"),
		channel.HandoversTaken:     arrived.WithLabelValues("taken"),
		channel.HandoversRefused:   arrived.WithLabelValues("refused"),
		channel.HandoversLate:      waits.WithLabelValues("late"),
		channel.HandoversNobody:    waits.WithLabelValues("nobody"),
		channel.HandoversBusy:      counter("handover_busy_total", "Channels that were not handed over, since the store did not answer."),
	}
	gauge("channels", "Channels known in memory.", t.channels.Load)
	gauge("cache_bytes", "Heads and hot tails.", t.cached.Load)
	gauge("queue_events", "Publishes waiting or in flight.", t.events.Load)
	gauge("queue_bytes", "Bytes of publishes waiting or in flight.", t.bytes.Load)
	if r != nil {
		r.MustRegister(all...)
	}
	return m
}
