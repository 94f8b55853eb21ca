package drill

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "spillway-drill-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "spillway")
	build := exec.Command("go", "build", "-o", binary, "github.com/spillway-io/spillway/cmd/spillway")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build spillway: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// small is a drill of a few hundred clients that takes seconds.
func small(scenario string) Options {
	o := Default()
	o.Scenario, o.Edges, o.Clients, o.Rate = scenario, 3, 300, 100
	o.Steady, o.Deadline, o.Binary = 3*time.Second, 8*time.Second, []string{binary}
	o.Admission = Lanes{Fresh: 20, Burst: 40, Resume: 30, Moved: 50}
	return o
}

// hold runs a drill and wants every promise but the named ones kept.
func hold(t *testing.T, o Options, but ...string) *Report {
	t.Helper()
	var told strings.Builder
	o.Out = &told
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, told.String())
	}
	for _, v := range r.Verdicts {
		if !v.Kept && !slices.ContainsFunc(but, func(p string) bool { return strings.Contains(v.Promise, p) }) {
			t.Errorf("broken: %s: %s", v.Promise, v.Got)
		}
	}
	if t.Failed() {
		r.Print(&told)
		t.Log(told.String())
	}
	return r
}

func TestRestart(t *testing.T) {
	hold(t, small("restart"), "interrupted", "grants", "planned time", "token", "everybody")
}

func TestKill(t *testing.T) { hold(t, small("kill"), "lane", "first attempts", "token") }
