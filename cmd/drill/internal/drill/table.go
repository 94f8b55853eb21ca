package drill

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Reports reads all reports of a folder, by file name without its ending.
func Reports(dir string) (map[string]*Report, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	all := make(map[string]*Report)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r := &Report{}
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = r
	}
	return all, nil
}

// Table is a table of reports in Markdown, in the order of the scenarios.
func Table(reports map[string]*Report) string {
	var b strings.Builder
	b.WriteString("| drill | clients | promises | displaced | interrupted | moved | outage p50 / p95 / p99, s | peak arrivals/s | all back, s | first attempts refused | refusals an admitted client | token provider calls | store reads a displaced client |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range order(reports) {
		r := reports[name]
		row(&b, name, r)
		if r.Beside != nil {
			row(&b, name+": "+r.Beside.Note, r.Beside)
		}
	}
	absences(&b, reports)
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		for r := reports[name]; r != nil && len(r.Returns) > 0; r = r.Beside {
			r.printReturns(&b)
		}
	}
	return b.String()
}

func row(b *strings.Builder, name string, r *Report) {
	f := &r.Figures
	fmt.Fprintf(b, "| %s | %d, %s | %d of %d kept | %d | %d | %d | %.1f / %.1f / %.1f | %d | %.1f | %.1f %% | %.2f | %d | %.3f |\n",
		name, r.Clients, r.Policy, r.kept(), len(r.Verdicts), f.Displaced, f.Interrupted, f.Moved,
		float64(f.Outage.P50)/1000, float64(f.Outage.P95)/1000, float64(f.Outage.P99)/1000, r.Curve.Peaks["all"],
		float64(f.ArrivedMs)/1000, 100*f.FirstRefused, f.RefusalsAdmitted, f.TokenAsks, f.ReadsDisplaced)
}

// Curves draws the arrivals of all reports, in Markdown.
func Curves(reports map[string]*Report) string {
	var b strings.Builder
	for _, name := range order(reports) {
		r := reports[name]
		curve(&b, name, r)
		if r.Beside != nil {
			curve(&b, name+": "+r.Beside.Note, r.Beside)
		}
	}
	return b.String()
}

func curve(b *strings.Builder, name string, r *Report) {
	c := &r.Curve
	columns := min(chartWidth, max(len(c.Arrivals), 1))
	each := max(1, (len(c.Arrivals)+columns-1)/columns)
	fmt.Fprintf(b, "%s: at most %d arrivals in %d ms; a column is %.1f s\n```\n", name, most(c.Arrivals), c.BucketMs, float64(each*c.BucketMs)/1000)
	for _, line := range spark(c.Arrivals, columns, 3) {
		fmt.Fprintf(b, "|%s\n", line)
	}
	fmt.Fprintf(b, "+%s\n```\n", axis(c, columns, each))
	for _, v := range r.Verdicts {
		if !v.Kept {
			fmt.Fprintf(b, "Broken: %s: %s\n", v.Promise, v.Got)
		}
	}
}

// absences is the table of outages.
func absences(b *strings.Builder, reports map[string]*Report) {
	first := true
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		r := reports[name]
		a := r.Absence
		if a == nil {
			continue
		}
		if first {
			b.WriteString("\n| away | for, s | promises | streams interrupted | RSS of the edge that grew most, MB | processors of edges and routers before / meanwhile | most log lines of one process | most questions in a second, after the return |\n|---|---|---|---|---|---|---|---|\n")
			first = false
		}
		from, to, _ := a.grown()
		_, lines := a.Away.loudest()
		fmt.Fprintf(b, "| %s | %.0f | %d of %d kept | %d | %.1f to %.1f | %.2f / %.2f | %.0f | %.0f |\n", a.Part, a.Away.Seconds,
			r.kept(), len(r.Verdicts), r.Figures.Interrupted, from/1e6, to/1e6, a.Steady.share(), a.Away.share(), lines, a.PeakAsks)
	}
}

// order is that of the scenarios, then by name. Those of backfill and outage have tables of
// their own.
func order(reports map[string]*Report) []string {
	var names []string
	for _, s := range scenarios() {
		var own []string
		for name, r := range reports {
			if r.Scenario == s.name && len(r.Returns) == 0 && r.Absence == nil {
				own = append(own, name)
			}
		}
		slices.Sort(own)
		names = append(names, own...)
	}
	return names
}
