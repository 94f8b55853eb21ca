package loadgen

import (
	"maps"
	"time"
)

// Counts rise for ever; a phase is a difference of two.
type Counts struct {
	Attempts  uint64 `json:"attempts"`  // connects begun
	Connected uint64 `json:"connected"` // `connected` received
	Refused   uint64 `json:"refused"`   // busy or an HTTP answer
	Failed    uint64 `json:"failed"`    // attempts that ended in any other way

	Deliveries uint64 `json:"deliveries"`  // events that came for the first time
	Lost       uint64 `json:"lost"`        // skipped without a word
	Duplicate  uint64 `json:"duplicate"`   // came again on the same connection, or late
	Unexpected uint64 `json:"unexpected"`  // events of a channel that is not subscribed, or before its verdict
	BadPayload uint64 `json:"bad_payload"` // checksum wrong
	SeqSkips   uint64 `json:"seq_skips"`   // publisher's numbers missing between two events in order
	SeqRepeats uint64 `json:"seq_repeats"` // publisher's numbers seen twice: the event was stored twice

	Gaps         uint64 `json:"gaps"`          // gap frames
	Announced    uint64 `json:"announced"`     // events lost by gap or recovered=false, as far as offsets tell
	Recovered    uint64 `json:"recovered"`     // verdicts, for clients that had a position
	NotRecovered uint64 `json:"not_recovered"` //
	Pending      uint64 `json:"pending"`       // verdicts that came later
	SubErrors    uint64 `json:"sub_errors"`    // subscriptions refused or ended
	Hints        uint64 `json:"hints"`         // `reconnect` frames

	Interrupted   uint64 `json:"interrupted"`    // times that a connected client was not any more
	CaughtUp      uint64 `json:"caught_up"`      // times that one came back and reached the head of all its channels
	FirstAttempts uint64 `json:"first_attempts"` // the first after an interruption
	FirstRefused  uint64 `json:"first_refused"`  //
	Resumed       uint64 `json:"resumed"`        // connected by ticket
	Offered       uint64 `json:"offered"`        // tickets offered at the door
	Passes        uint64 `json:"passes"`         // of them passes for a slot
	TokenAsks     uint64 `json:"token_asks"`     // calls of the clients' token providers
	Moves         uint64 `json:"moves"`          // attempts that obey a hint
	Moved         uint64 `json:"moved"`          // second connections that were welcomed
	MovesRefused  uint64 `json:"moves_refused"`  //
	MovesFailed   uint64 `json:"moves_failed"`   //
	SameNode      uint64 `json:"same_node"`      // moves that came out where they began

	Pings uint64 `json:"pings"` // sent
	Reads uint64 `json:"reads"` // read(2) that gave something
	Bytes uint64 `json:"bytes"` // received
}

// fields are all counts, in order.
func (c *Counts) fields() []*uint64 {
	return []*uint64{
		&c.Attempts, &c.Connected, &c.Refused, &c.Failed, &c.Deliveries, &c.Lost, &c.Duplicate,
		&c.Unexpected, &c.BadPayload, &c.SeqSkips, &c.SeqRepeats, &c.Gaps, &c.Announced, &c.Recovered, &c.NotRecovered,
		&c.Pending, &c.SubErrors, &c.Hints, &c.Interrupted, &c.CaughtUp, &c.FirstAttempts, &c.FirstRefused, &c.Resumed,
		&c.Offered, &c.Passes, &c.TokenAsks, &c.Moves, &c.Moved, &c.MovesRefused, &c.MovesFailed, &c.SameNode, &c.Pings, &c.Reads, &c.Bytes,
	}
}

// Add adds another's counts.
func (c *Counts) Add(o Counts) {
	from := o.fields()
	for i, p := range c.fields() {
		*p += *from[i]
	}
}

// Sub takes another's counts away.
func (c *Counts) Sub(o Counts) {
	from := o.fields()
	for i, p := range c.fields() {
		*p -= min(*p, *from[i])
	}
}

// Clean says that nothing was lost, doubled, disordered or damaged.
func (c *Counts) Clean() bool {
	return c.Lost+c.Duplicate+c.Unexpected+c.BadPayload+c.SeqRepeats == 0
}

// Report is what one generator, or several merged, saw.
type Report struct {
	Wanted int    `json:"wanted"` // clients
	Up     int    `json:"up"`     // connected now
	Total  Counts `json:"total"`
	Phase  Counts `json:"phase"` // since the last mark

	PhaseName string        `json:"phase_name"`
	PhaseTime time.Duration `json:"phase_ns"`   // since the mark
	Latency   Histogram     `json:"latency"`    // of the phase: publish to read, needs payloads
	Connect   Histogram     `json:"connect"`    // of the phase: connect(2) to `connected`
	Outage    Histogram     `json:"outage"`     // of the phase: without any welcomed connection
	CaughtUp  Histogram     `json:"caught_up"`  // of the phase: from the loss to the head of all channels
	MovesEach []uint32      `json:"moves_each"` // of the phase: clients that moved 0, 1, 2 … times
	CPU       time.Duration `json:"cpu_ns"`     // of the phase, the generator's own
	MaxRSS    int64         `json:"max_rss_b"`  // the generator's own

	Causes  map[string]uint64 `json:"causes"`  // ends by cause
	Codes   map[string]uint64 `json:"codes"`   // close frames by code
	Refused map[string]uint64 `json:"refused"` // busy, or HTTP status
	Errors  map[string]uint64 `json:"errors"`  // error frames and entries by word

	// Series in buckets of 200 ms from Start.
	Start    time.Time `json:"start"`
	Arrivals []uint32  `json:"arrivals"` // `connected`
	Refusals []uint32  `json:"refusals"`
	Returns  []uint32  `json:"returns"` // arrivals of clients that had no welcomed connection
	Ends     []uint32  `json:"ends"`    // interruptions; returns less ends: clients that are up

	ByNode map[string][]uint32 `json:"by_node"` // arrivals by the node that welcomed them
}

// Merge adds what another generator saw; series are put side by side by their starts.
func (r *Report) Merge(o *Report) {
	r.Wanted += o.Wanted
	r.Up += o.Up
	r.Total.Add(o.Total)
	r.Phase.Add(o.Phase)
	r.PhaseTime = max(r.PhaseTime, o.PhaseTime)
	r.Latency.Merge(&o.Latency)
	r.Connect.Merge(&o.Connect)
	r.Outage.Merge(&o.Outage)
	r.CaughtUp.Merge(&o.CaughtUp)
	r.MovesEach = mergeSeries(r.MovesEach, o.MovesEach, 0)
	r.CPU += o.CPU
	r.MaxRSS += o.MaxRSS
	for _, m := range []struct{ to, from *map[string]uint64 }{
		{&r.Causes, &o.Causes}, {&r.Codes, &o.Codes}, {&r.Refused, &o.Refused}, {&r.Errors, &o.Errors},
	} {
		if *m.to = maps.Clone(*m.to); *m.to == nil {
			*m.to = map[string]uint64{}
		}
		for k, n := range *m.from {
			(*m.to)[k] += n
		}
	}
	shift := int((o.Start.Sub(r.Start) + Bucket/2) / Bucket)
	if o.Start.Before(r.Start) {
		shift = int((o.Start.Sub(r.Start) - Bucket/2) / Bucket)
	}
	r.Arrivals = mergeSeries(r.Arrivals, o.Arrivals, shift)
	r.Refusals = mergeSeries(r.Refusals, o.Refusals, shift)
	r.Returns = mergeSeries(r.Returns, o.Returns, shift)
	r.Ends = mergeSeries(r.Ends, o.Ends, shift)
	if r.ByNode == nil {
		r.ByNode = map[string][]uint32{}
	}
	for node, series := range o.ByNode {
		r.ByNode[node] = mergeSeries(r.ByNode[node], series, shift)
	}
}

func mergeSeries(to, from []uint32, shift int) []uint32 {
	for i, n := range from {
		at := max(i+shift, 0)
		for len(to) <= at {
			to = append(to, 0)
		}
		to[at] += n
	}
	return to
}

// maxMoves bounds the count of one client's moves; the last is "that many or more".
const maxMoves = 16

// maxBuckets bounds a series: one hour; what comes later is counted in the last.
const maxBuckets = 18_000

func count(series []uint32, at time.Duration) []uint32 {
	i := min(int(at/Bucket), maxBuckets-1)
	for len(series) <= i {
		series = append(series, 0)
	}
	series[i]++
	return series
}
