package drill

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
)

// Verdict says whether one promise was kept.
type Verdict struct {
	Promise string `json:"promise"`
	Got     string `json:"got"`
	Kept    bool   `json:"kept"`
}

// Step is something that the drill did.
type Step struct {
	AtMs int64  `json:"at_ms"` // from the start of the incident; below 0: before
	What string `json:"what"`
}

// Curve is a part of a run in buckets of 200 ms.
type Curve struct {
	BucketMs int               `json:"bucket_ms"`
	FromMs   int64             `json:"from_ms"` // of the first bucket, from the start of the incident
	Arrivals []uint32          `json:"arrivals"`
	Refusals []uint32          `json:"refusals"`
	Ends     []uint32          `json:"interruptions"`
	Up       []int             `json:"connected"`
	Peaks    map[string]uint64 `json:"peak_per_second"` // arrivals by node that welcomed them, and "all"
}

// Outage is how long clients had no connection, and how long until nothing was missing.
type Outage struct {
	Clients uint64 `json:"clients"`
	P50     int64  `json:"p50_ms"`
	P95     int64  `json:"p95_ms"`
	P99     int64  `json:"p99_ms"`
	Max     int64  `json:"max_ms"`
}

// Figures of a run.
type Figures struct {
	Displaced        uint64            `json:"displaced"` // clients on what was taken away
	Interrupted      uint64            `json:"interrupted"`
	Moved            uint64            `json:"moved"`
	Outage           Outage            `json:"outage"`
	CaughtUp         Outage            `json:"caught_up"` // from the loss to the head of all channels
	FirstRefused     float64           `json:"first_attempts_refused"`
	RefusalsAdmitted float64           `json:"refusals_per_admitted"`
	TokenAsks        uint64            `json:"token_provider_calls"`
	StoreReads       float64           `json:"store_reads"`
	ReadsDisplaced   float64           `json:"store_reads_per_displaced"`
	ArrivedMs        int64             `json:"last_arrival_ms"` // after the start of the incident
	SettleMs         int64             `json:"settle_ms"`       // as the cluster says; 0: it does not
	PlannedMs        int64             `json:"planned_ms"`      // of the operation; 0: none
	GrantedPerSecond float64           `json:"granted_per_second"`
	Events           uint64            `json:"events"`
	Latency          map[string]int64  `json:"latency_us"` // of deliveries during the incident
	GeneratorCPU     time.Duration     `json:"-"`
	Counts           loadgen.Counts    `json:"counts"` // during the incident
	Refused          map[string]uint64 `json:"refused_how"`
	Codes            map[string]uint64 `json:"close_codes"`
	Causes           map[string]uint64 `json:"ends_by_cause"`
	Closed           map[string]uint64 `json:"edges_closed"`  // by reason, over the whole run, by edges that still live
	TurnedAway       map[string]uint64 `json:"edges_refused"` // the same
	MovesEach        []uint32          `json:"clients_by_moves"`
	Conns            map[string]uint64 `json:"connections_at_end"`
}

// Report is one run. It names no machine and no path.
type Report struct {
	Scenario   string    `json:"scenario"`
	Version    string    `json:"version"`
	Began      time.Time `json:"began"`
	Cores      int       `json:"cores"`
	Edges      int       `json:"edges"`
	Clients    int       `json:"clients"`
	Rate       int       `json:"events_per_second"`
	Policy     string    `json:"policy"`
	OneAddress string    `json:"one_address,omitempty"`
	Store      string    `json:"store"`
	Admission  Lanes     `json:"admission"`
	Kept       bool      `json:"kept"` // every promise
	Steps      []Step    `json:"steps"`
	Verdicts   []Verdict `json:"verdicts"`
	Figures    Figures   `json:"figures"`
	Curve      Curve     `json:"curve"`
	Returns    []*Return `json:"returns,omitempty"` // of backfill, in place of figures and curve
	Absence    *Absence  `json:"absence,omitempty"` // of outage
	// Beside is the same scenario under other settings, to compare with.
	Beside *Report `json:"beside,omitempty"`
	Note   string  `json:"note,omitempty"`
}

func newReport(o *Options, version string) *Report {
	return &Report{
		Scenario: o.Scenario, Version: version, Began: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(),
		Edges: o.Edges, Clients: o.Clients, Rate: o.Rate, Policy: o.Policy, OneAddress: o.OneAddress,
		Store: o.Store, Admission: o.Admission, Steps: []Step{}, Verdicts: []Verdict{},
	}
}

// judge says whether all promises were kept.
func (r *Report) judge() {
	r.Kept = len(r.Verdicts) > 0
	for _, v := range r.Verdicts {
		r.Kept = r.Kept && v.Kept
	}
}

// kept counts the promises that were.
func (r *Report) kept() (n int) {
	for _, v := range r.Verdicts {
		if v.Kept {
			n++
		}
	}
	return n
}

func outageOf(h *loadgen.Histogram) Outage {
	return Outage{
		Clients: h.Count(), P50: h.Quantile(0.5).Milliseconds(), P95: h.Quantile(0.95).Milliseconds(),
		P99: h.Quantile(0.99).Milliseconds(), Max: h.Max().Milliseconds(),
	}
}

// Print tells people: curve, figures, verdicts.
func (r *Report) Print(w io.Writer) {
	if len(r.Returns) > 0 {
		r.printReturns(w)
	} else {
		r.printIncident(w)
	}
	for _, v := range r.Verdicts {
		mark := "kept  "
		if !v.Kept {
			mark = "BROKEN"
		}
		_, _ = fmt.Fprintf(w, "%s  %s: %s\n", mark, v.Promise, v.Got)
	}
	if len(r.Returns) > 0 && r.Beside != nil {
		r.Beside.Print(w)
	}
}

func (r *Report) printIncident(w io.Writer) {
	c := &r.Curve
	columns := min(chartWidth, max(len(c.Arrivals), 1))
	each := max(1, (len(c.Arrivals)+columns-1)/columns)
	pf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	pf("\narrivals, buckets of %d ms, highest %d; a column is %d ms:\n", c.BucketMs, most(c.Arrivals), each*c.BucketMs)
	for _, line := range spark(c.Arrivals, columns, 3) {
		pf("  |%s\n", line)
	}
	pf("  +%s\n", axis(c, columns, each))
	if n := most(c.Refusals); n > 0 {
		pf("refusals, highest %d:\n", n)
		for _, line := range spark(c.Refusals, columns, 2) {
			pf("  |%s\n", line)
		}
	}
	f := &r.Figures
	pf("\n%d displaced, %d interrupted, %d moved; peak %d arrivals/s (granted %.0f/s)\n", f.Displaced, f.Interrupted, f.Moved, c.Peaks["all"], f.GrantedPerSecond)
	pf("outage p50 %d ms, p95 %d, p99 %d, longest %d; caught up p99 %d ms\n", f.Outage.P50, f.Outage.P95, f.Outage.P99, f.Outage.Max, f.CaughtUp.P99)
	pf("last arrival after %.1f s, settled after %.1f s, planned %.1f s\n", float64(f.ArrivedMs)/1000, float64(f.SettleMs)/1000, float64(f.PlannedMs)/1000)
	pf("%.1f %% of first attempts refused, %.2f refusals per admitted client, %d calls of token providers, %.4f store reads per displaced client\n",
		100*f.FirstRefused, f.RefusalsAdmitted, f.TokenAsks, f.ReadsDisplaced)
	pf("%d events, %d deliveries, latency p50 %.1f ms, p99 %.1f ms\n\n", f.Events, f.Counts.Deliveries, float64(f.Latency["p50"])/1000, float64(f.Latency["p99"])/1000)
}

// axis marks where the incident began.
func axis(c *Curve, columns, each int) string {
	line := make([]rune, columns)
	for i := range line {
		line[i] = '-'
	}
	at := int(-c.FromMs) / max(c.BucketMs*each, 1)
	text := []rune("^ begins")
	for i, r := range text {
		if at+i >= 0 && at+i < columns {
			line[at+i] = r
		}
	}
	return string(line)
}
