package drill

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPeakIsOverAnySecond(t *testing.T) {
	for _, x := range []struct {
		series []uint32
		want   uint64
	}{
		{nil, 0},
		{[]uint32{3}, 3},
		{[]uint32{1, 1, 1, 1, 1, 1, 1}, 5},
		{[]uint32{0, 0, 4, 0, 0, 0, 5, 0, 0}, 9},
		{[]uint32{4, 0, 0, 0, 0, 5}, 5},
	} {
		if got := peak(x.series); got != x.want {
			t.Errorf("%v: %d, want %d", x.series, got, x.want)
		}
	}
}

func TestExcessIsWhatABucketWouldNotGive(t *testing.T) {
	for _, x := range []struct {
		name        string
		series      []uint32
		rate, burst float64
		want        float64
	}{
		{"the rate", []uint32{2, 2, 2, 2, 2, 2}, 10, 2, 0},
		{"the burst once", []uint32{12, 2, 2, 2}, 10, 12, 0},
		{"the burst twice", []uint32{12, 12}, 10, 12, 10},
		{"after a quiet second the burst again", []uint32{10, 0, 0, 0, 0, 10}, 10, 10, 0},
	} {
		if got := excess(x.series, x.rate, x.burst); got != x.want {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
}

func TestLevelAndLast(t *testing.T) {
	if got := level([]uint32{5, 0, 2}, []uint32{0, 3}); !slices.Equal(got, []int{5, 2, 4}) {
		t.Errorf("level %v", got)
	}
	if got := last([]uint32{0, 1, 0, 2, 0}); got != 800*time.Millisecond {
		t.Errorf("last %v", got)
	}
}

func TestAMetricIsFoundByNameAndLabel(t *testing.T) {
	const text = "# HELP a_total x\na_total{call=\"read\"} 3\na_total{call=\"heads\"} 4\na_total_more 9\na 1e2\n"
	for _, x := range []struct {
		name, labels string
		want         float64
	}{{"a_total", "", 7}, {"a_total", `call="read"`, 3}, {"a", "", 100}, {"b", "", 0}} {
		if got := sample(text, x.name, x.labels); got != x.want {
			t.Errorf("%s %s: %v, want %v", x.name, x.labels, got, x.want)
		}
	}
}

func TestTheChartShowsWhereItBegan(t *testing.T) {
	r := &Report{Curve: Curve{BucketMs: 200, FromMs: -1000, Arrivals: []uint32{0, 0, 0, 0, 0, 9, 5, 1, 0, 0, 0, 0, 0, 0}}, Verdicts: []Verdict{{"x", "y", false}}}
	r.Figures.Latency = map[string]int64{}
	var b bytes.Buffer
	r.Print(&b)
	for _, want := range []string{"\n  +-----^ begins-\n", "\n  |     ██▃\n", "BROKEN  x: y\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if r.judge(); r.Kept {
		t.Error("kept")
	}
}

func TestOptionsReportAllProblemsAtOnce(t *testing.T) {
	o := Default()
	o.Scenario, o.Edges, o.Clients, o.Policy, o.Server = "dance", 1, 3, "odd", "x:1"
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"scenario: dance", "--edges: 1", "--clients: 3", "--policy", "--server"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	o = Default()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

func TestTheTableHasARowForEachRun(t *testing.T) {
	dir := t.TempDir()
	r := &Report{Scenario: "old-clients", Clients: 60, Policy: "fixed-1s", Verdicts: []Verdict{{"x", "y", true}, {"z", "was not", false}}}
	r.Beside = &Report{Note: "admission off"}
	for name, r := range map[string]*Report{"old-1s": r, "restart": {Scenario: "restart"}} {
		text, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	reports, err := Reports(dir)
	if err != nil {
		t.Fatal(err)
	}
	table, curves := Table(reports), Curves(reports)
	restart, old, beside := strings.Index(table, "| restart |"), strings.Index(table, "| old-1s | 60, fixed-1s | 1 of 2 kept |"), strings.Index(table, "| old-1s: admission off |")
	if restart < 0 || old < restart || beside < old || !strings.Contains(curves, "Broken: z: was not") {
		t.Errorf("%s%s", table, curves)
	}
}
