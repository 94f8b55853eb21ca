package drill

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
)

// What may be used up while a part is away.
const (
	firstLines = 40          // of the log of a process, to say what is missing
	mostLines  = 20          // a minute
	memorySlip = 8e6         // bytes: what a heap of this size moves between two collections
	memoryRise = 1.15        // of an edge, from the second tenth of the time to the last
	idleShare  = 0.1         // of a processor, all edges and routers together, above the quiet time
	mostAsks   = 3           // questions in a second of the return, for each channel carried: its head, its repair, and a look that was due
	slowHealth = time.Second // for /healthz
)

// Effort is what a stretch of time cost.
type Effort struct {
	Seconds float64            `json:"seconds"`
	CPU     map[string]float64 `json:"cpu_share"` // of one processor, by process that lived through it
	Lines   map[string]float64 `json:"log_lines"`
}

// Absence is what an outage found beyond what clients saw.
type Absence struct {
	Part       string               `json:"part"`
	Steady     Effort               `json:"steady"` // before
	Away       Effort               `json:"away"`
	Memory     map[string][]float64 `json:"rss_bytes"`       // of each edge, at each look
	Sick       []string             `json:"unhealthy"`       // answers of /healthz and /readyz that were not 200
	Looks      int                  `json:"looks"`           //
	Pending    uint64               `json:"pending"`         // verdicts that had to wait
	PeakAsks   float64              `json:"peak_asks"`       // a second, all edges, after the return
	Missed     []string             `json:"members_missing"` // after the return
	Operations int                  `json:"operations"`      // begun meanwhile, by nobody
	Changes    float64              `json:"changes"`         // departures, lost leases, new epochs, lost races
}

// effort measures what processes use while do runs; d is how long a quiet stretch is.
func (w *world) effort(do func(d time.Duration) error) (Effort, error) {
	cpu, lines, began := w.cpu(), w.lines(), time.Now()
	if err := do(min(w.o.Away, 20*time.Second)); err != nil {
		return Effort{}, err
	}
	e := Effort{Seconds: time.Since(began).Seconds(), CPU: map[string]float64{}, Lines: map[string]float64{}}
	for id, now := range w.cpu() {
		if before, ok := cpu[id]; ok && now >= before {
			e.CPU[id] = (now - before) / e.Seconds
		}
	}
	for id, now := range w.lines() {
		e.Lines[id] = now - lines[id]
	}
	return e, nil
}

func (e Effort) share() (sum float64) {
	for _, s := range e.CPU {
		sum += s
	}
	return sum
}

// loudest is the process with the most log lines.
func (e Effort) loudest() (id string, lines float64) {
	for _, name := range slices.Sorted(maps.Keys(e.Lines)) {
		if n := e.Lines[name]; id == "" || n > lines {
			id, lines = name, n
		}
	}
	return id, lines
}

func (w *world) nodes() []*cluster.Node { return append(w.c.Routers(), w.c.Edges()...) }

func (w *world) cpu() map[string]float64 {
	all := make(map[string]float64)
	for _, n := range w.nodes() {
		if status, text := n.Get(w.ctx, "/metrics"); status == http.StatusOK {
			all[n.ID] = sample(text, "process_cpu_seconds_total", "")
		}
	}
	return all
}

func (w *world) lines() map[string]float64 {
	all := make(map[string]float64)
	for _, n := range w.nodes() {
		text, err := os.ReadFile(filepath.Join(w.c.Dir(), n.ID+".log"))
		if err == nil {
			all[n.ID] = float64(strings.Count(string(text), "\n"))
		}
	}
	return all
}

// watch takes one look at the health of all that lives and the memory of the edges.
func (w *world) watch(a *Absence) {
	if a.Memory == nil {
		a.Memory = make(map[string][]float64)
	}
	a.Looks++
	for _, n := range w.nodes() {
		if !n.Running() {
			continue
		}
		began := time.Now()
		status, _ := n.Get(w.ctx, "/healthz")
		if took := time.Since(began); status != http.StatusOK || took > slowHealth {
			a.Sick = append(a.Sick, fmt.Sprintf("%s /healthz %d in %v", n.ID, status, took))
		}
	}
	for _, n := range w.c.Edges() {
		if status, _ := n.Get(w.ctx, "/readyz"); status != http.StatusOK {
			a.Sick = append(a.Sick, fmt.Sprintf("%s /readyz %d", n.ID, status))
		}
		_, text := n.Get(w.ctx, "/metrics")
		a.Memory[n.ID] = append(a.Memory[n.ID], sample(text, "process_resident_memory_bytes", ""))
	}
}

// grown is by how much the edge that grew most did, from the second tenth of the looks to
// the last.
func (a *Absence) grown() (from, to float64, edge string) {
	worst := 0.0
	for _, id := range slices.Sorted(maps.Keys(a.Memory)) {
		looks := a.Memory[id]
		tenth := max(len(looks)/10, 1)
		early, late := mean(looks[min(tenth, len(looks)-1):min(2*tenth+1, len(looks))]), mean(looks[len(looks)-tenth:])
		if rise := late / max(early, 1); edge == "" || rise > worst {
			worst, from, to, edge = rise, early, late, id
		}
	}
	return from, to, edge
}

func mean(all []float64) (m float64) {
	for _, v := range all {
		m += v / float64(len(all))
	}
	return m
}

// promiseAway: nothing grows or spins while a part is away, and all stay healthy.
func (w *world) promiseAway(a *Absence) {
	w.promise(len(a.Sick) == 0, "/healthz of all that lives and /readyz of edges answer 200", "%d looks, %d failed %v", a.Looks, len(a.Sick), a.Sick[:min(len(a.Sick), 3)])
	from, to, edge := a.grown()
	w.promise(to <= from*memoryRise+memorySlip, "the memory of edges stays flat", "%s from %.1f to %.1f MB", edge, from/1e6, to/1e6)
	loud, most := a.Away.loudest()
	minutes := a.Away.Seconds / 60
	w.promise(most <= firstLines+mostLines*minutes, fmt.Sprintf("at most %d log lines, and %d a minute", firstLines, mostLines), "%.0f by %s in %.1f minutes", most, loud, minutes)
	idle := a.Steady.share() + idleShare
	w.promise(a.Away.share() <= idle, "edges and routers do not spin", "%.3f processors, %.3f before", a.Away.share(), a.Steady.share())
}

// promiseRestored: everything is where it was, and nobody stormed to get there.
func (w *world) promiseRestored(a *Absence) {
	if w.o.Part == "routers" {
		w.promise(a.Pending >= uint64(w.o.late), "positions of new clients were pending", "%d", a.Pending)
	}
	w.promise(len(a.Missed) == 0, "no member is missed on the return, by any router", "%d times %v", len(a.Missed), a.Missed[:min(len(a.Missed), 3)])
	w.promise(a.Changes == 0 && w.seen.Total.Gaps == 0, "no member, owner or epoch has changed", "%.0f departures, lost leases, lost races and new epochs; %d gaps told", a.Changes, w.seen.Total.Gaps)
	w.promise(w.seen.Phase.Hints == 0 && a.Operations == 0, "nobody is told to move", "%d clients, %d operations", w.seen.Phase.Hints, a.Operations)
	carried := w.metric(w.c.Edges(), "spillway_feed_channels", "")
	w.promise(a.PeakAsks <= mostAsks*carried, "edges do not storm the routers on the return", "at most %.0f questions in a second, for %.0f channels", a.PeakAsks, carried)
}
