package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type settleCmd struct {
	remote
	Region string `help:"This region only." placeholder:"REGION"`
	JSON   bool   `help:"Print one JSON object a line." name:"json"`
	Watch  bool   `help:"Once a second, until interrupted."`
}

// sparkSeconds is how far back the curve of new connections goes.
const sparkSeconds = 60

// Run shows how regions settle, as one router measures it.
func (c *settleCmd) Run(e *env) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	admin := routerv1.NewAdminServiceClient(conn)
	return watch(e.ctx, &c.remote, c.Watch, func(ctx context.Context) (*settleReport, error) { return c.ask(ctx, admin) },
		func(report *settleReport) error { return c.print(os.Stdout, report, run.Terminal(os.Stdout)) })
}

// settleReport is what a router said.
type settleReport struct {
	incidents []*routerv1.Incident // newest first
	curves    []curve              // by region
}

// curve is the new connections of a region in each of the last seconds.
type curve struct {
	Type         string   `json:"type"` // "arrivals"
	Region       string   `json:"region"`
	NewPerSecond []uint32 `json:"new_per_second"` // the oldest first
	Refused      []uint32 `json:"refused_per_second"`
}

func (c *settleCmd) ask(ctx context.Context, admin routerv1.AdminServiceClient) (*settleReport, error) {
	incidents, err := admin.ListIncidents(ctx, &routerv1.ListIncidentsRequest{Region: c.Region})
	if err != nil {
		return nil, err
	}
	report := &settleReport{incidents: incidents.Incidents}
	regions := []string{c.Region}
	if c.Region == "" {
		nodes, err := admin.ListNodes(ctx, &routerv1.ListNodesRequest{})
		if err != nil {
			return nil, err
		}
		regions = regionsOf(nodes.Nodes, report.incidents)
	}
	for _, region := range regions {
		since := time.Now().Add(-2 * sparkSeconds * time.Second).UnixMilli()
		arrivals, err := admin.GetArrivals(ctx, &routerv1.GetArrivalsRequest{Region: region, SinceMs: uint64(since)})
		if err != nil {
			return nil, err
		}
		report.curves = append(report.curves, newCurve(region, arrivals.Windows, time.Now()))
	}
	return report, nil
}

// regionsOf are the regions that have edges or incidents, in order.
func regionsOf(nodes []*routerv1.Node, incidents []*routerv1.Incident) []string {
	var regions []string
	for _, n := range nodes {
		if n.Role == "edge" {
			regions = append(regions, n.Region)
		}
	}
	for _, i := range incidents {
		regions = append(regions, i.Region)
	}
	slices.Sort(regions)
	return slices.Compact(regions)
}

// newCurve sums windows up to seconds. The last three are not told yet.
func newCurve(region string, windows []*routerv1.ArrivalWindow, now time.Time) curve {
	c := curve{Type: "arrivals", Region: region, NewPerSecond: make([]uint32, sparkSeconds), Refused: make([]uint32, sparkSeconds)}
	first := now.Unix() - 3 - sparkSeconds
	for _, w := range windows {
		if i := int64(w.StartMs/1000) - first; i >= 0 && i < sparkSeconds {
			c.NewPerSecond[i] += w.Moved + w.Resumed + w.Fresh
			c.Refused[i] += w.Refused + w.Reset_
		}
	}
	return c
}

func (c *settleCmd) print(to io.Writer, r *settleReport, terminal bool) error {
	if c.JSON {
		return r.printJSON(to)
	}
	if c.Watch && terminal {
		_, _ = fmt.Fprint(to, "\033[H\033[2J") // begin at the top of an empty screen
	}
	for _, curve := range r.curves {
		_, _ = fmt.Fprintf(to, "%s  %s  new/s: now %d, most %d; refused/s: now %d, most %d\n", cmp.Or(curve.Region, "-"),
			sparkline(curve.NewPerSecond, terminal), curve.NewPerSecond[sparkSeconds-1], slices.Max(curve.NewPerSecond),
			curve.Refused[sparkSeconds-1], slices.Max(curve.Refused))
	}
	if len(r.incidents) == 0 {
		_, err := fmt.Fprintln(to, "no incidents")
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "START\tREGION\tSETTLED\tCAUSE\tDISPLACED\tBACK\tCAUGHT UP\tNEVER\tADMITTED\tREFUSED\tPEAK/s\tUSUAL/s\tP50\tP95\tP99")
	for _, i := range r.incidents {
		settled := "not yet"
		if i.SettledMs != 0 {
			settled = settleTime(i.SettledMs - i.StartMs)
		}
		for n, cause := range i.Causes {
			name := cause.Kind
			if cause.Id != "" {
				name += " " + cause.Id
			}
			line := fmt.Sprintf("\t\t\t%s\t%d\t%d\t%d\t%d\t\t\t\t\t\t\t", name, cause.Displaced, cause.Back, cause.CaughtUp, cause.NeverBack)
			if n == 0 {
				line = fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f\t%.1f\t%s\t%s\t%s",
					time.UnixMilli(int64(i.StartMs)).Format(time.TimeOnly), cmp.Or(i.Region, "-"), settled, name,
					cause.Displaced, cause.Back, cause.CaughtUp, cause.NeverBack, i.Admitted, i.Refused, i.PeakPerSecond, i.UsualPerSecond,
					settleTime(uint64(i.P50Ms)), settleTime(uint64(i.P95Ms)), settleTime(uint64(i.P99Ms)))
			}
			_, _ = fmt.Fprintln(w, line)
		}
	}
	return w.Flush()
}

func settleTime(ms uint64) string { return fmt.Sprintf("%.1fs", float64(ms)/1000) }

// sparkline draws a curve with one character a value, the largest at full height;
// nothing is a blank. In a file it uses ASCII.
func sparkline(values []uint32, blocks bool) string {
	steps := []rune("_.:-=+*#")
	if blocks {
		steps = []rune("▁▂▃▄▅▆▇█")
	}
	most := slices.Max(values)
	var b strings.Builder
	for _, v := range values {
		if v == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(steps[(uint64(v)*uint64(len(steps))-1)/uint64(most)])
	}
	return b.String()
}

// incidentLine is one incident in --json.
type incidentLine struct {
	Type           string      `json:"type"` // "incident"
	Region         string      `json:"region"`
	StartMS        uint64      `json:"start_ms"`
	SettledMS      uint64      `json:"settled_ms,omitempty"` // absent: not yet
	Causes         []causeLine `json:"causes"`
	PeakPerSecond  float64     `json:"peak_per_second"`
	UsualPerSecond float64     `json:"usual_per_second"`
	Admitted       uint64      `json:"admitted"`
	Refused        uint64      `json:"refused"`
	P50MS          uint32      `json:"p50_ms"`
	P95MS          uint32      `json:"p95_ms"`
	P99MS          uint32      `json:"p99_ms"`
}

type causeLine struct {
	Kind      string `json:"kind"`
	ID        string `json:"id,omitempty"`
	StartMS   uint64 `json:"start_ms"`
	Displaced uint64 `json:"displaced"`
	Back      uint64 `json:"back"`
	CaughtUp  uint64 `json:"caught_up"`
	NeverBack uint64 `json:"never_back"`
}

func (r *settleReport) printJSON(to io.Writer) error {
	enc := json.NewEncoder(to)
	for _, c := range r.curves {
		if err := enc.Encode(c); err != nil {
			return err
		}
	}
	for _, i := range r.incidents {
		line := incidentLine{
			Type: "incident", Region: i.Region, StartMS: i.StartMs, SettledMS: i.SettledMs, Causes: []causeLine{},
			PeakPerSecond: i.PeakPerSecond, UsualPerSecond: i.UsualPerSecond, Admitted: i.Admitted, Refused: i.Refused,
			P50MS: i.P50Ms, P95MS: i.P95Ms, P99MS: i.P99Ms,
		}
		for _, c := range i.Causes {
			line.Causes = append(line.Causes, causeLine{c.Kind, c.Id, c.StartMs, c.Displaced, c.Back, c.CaughtUp, c.NeverBack})
		}
		if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return nil
}
