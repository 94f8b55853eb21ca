package drill

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/router/history/historytest/pgserver"
)

var binary string

// TestMain builds the program whose processes the drills are made of: without the race
// detector, which is too slow for what they promise.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "spillway-drill-")
	if err != nil {
		panic(err)
	}
	if binary, err = process.Build("cmd/drill", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
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
	o.Steady, o.Ping, o.Deadline, o.Binary = 5*time.Second, 3*time.Second, 8*time.Second, []string{binary}
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
	t.Parallel()
	hold(t, small("restart"))
}

// Clients that cannot move are closed over the window, and come back by themselves.
func TestRestartWithClientsOfAnotherMake(t *testing.T) {
	t.Parallel()
	o := small("restart")
	o.Policy = "fixed-1s"
	hold(t, o)
}

// Behind one address the pace is that of the smallest grant, and nobody notices either.
func TestRestartBehindOneAddress(t *testing.T) {
	t.Parallel()
	o := small("restart")
	o.OneAddress = "builtin"
	hold(t, o)
}

func TestKill(t *testing.T) {
	t.Parallel()
	hold(t, small("kill"))
}

// Without admission the same clients come all at once: the comparison is in the report.
func TestOldClients(t *testing.T) {
	t.Parallel()
	o := small("old-clients")
	o.Clients = 900
	r := hold(t, o)
	if r.Beside == nil || r.Beside.Curve.Peaks["all"] <= r.Curve.Peaks["all"] {
		t.Errorf("admission off: %+v", r.Beside)
	}
}

func TestRolling(t *testing.T) {
	t.Parallel()
	o := small("rolling")
	o.Admission.Moved = 120
	hold(t, o)
}

func TestRollingBehindOneAddress(t *testing.T) {
	t.Parallel()
	o := small("rolling")
	o.OneAddress, o.Admission.Moved = "builtin", 120
	hold(t, o)
}

func TestScaleOut(t *testing.T) {
	t.Parallel()
	o := small("scale-out")
	o.Clients = 600
	hold(t, o)
}

func TestEvacuate(t *testing.T) {
	t.Parallel()
	o := small("evacuate")
	o.Edges, o.Window = 4, 15*time.Second
	hold(t, o)
}

func TestFlap(t *testing.T) {
	t.Parallel()
	o := small("flap")
	o.Window = 30 * time.Second
	hold(t, o)
}

func TestProxyCut(t *testing.T) {
	t.Parallel()
	r := hold(t, small("proxy-cut"))
	if !r.Beside.Kept {
		t.Errorf("without FIN: %+v", r.Beside.Verdicts)
	}
}

// Small and young, it shows that queries grow with time and full batches; the figures of
// the shield come from 10,000 clients.
func TestBackfill(t *testing.T) {
	t.Parallel()
	if _, err := pgserver.Find(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	r := hold(t, small("backfill"))
	if r.Beside == nil || !r.Beside.Kept || len(r.Returns) != 4 || r.Returns[2].Queries <= r.Returns[1].Queries {
		t.Errorf("%+v beside %+v", r.Returns, r.Beside)
	}
}

// Nobody has a router for ten seconds; `go run ./cmd/drill outage` makes it ten minutes, and
// takes NATS, etcd and the store as well.
func TestAllRoutersAway(t *testing.T) {
	t.Parallel()
	if _, err := pgserver.Find(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	o := small("outage")
	o.Part, o.Away = "routers", 10*time.Second
	hold(t, o)
}

func TestStoreAway(t *testing.T) {
	t.Parallel()
	if _, err := pgserver.Find(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	hold(t, small("store-away"))
}
