package pubbench

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
)

// TestMain is the tests, or one process of a cluster.
func TestMain(m *testing.M) {
	if code, isPart := cluster.Part(os.Args[1:], nil); isPart {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// Every event of a phase is acked by a real router, and the commits are told.
func TestEveryPhaseIsMeasured(t *testing.T) {
	o := Default()
	o.Stores, o.Publishers, o.Channels, o.Batch, o.Time = []string{cluster.SQLite}, []int{1, 8}, 50, 3, 100*time.Millisecond
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 6 {
		t.Fatalf("%d rows", len(report.Rows))
	}
	for _, row := range report.Rows {
		if row.PerSecond <= 0 || row.P99 < row.P50 || row.Failed > 0 || (row.How == "empty") != (row.Commit == 0) {
			t.Errorf("%+v", row)
		}
	}
	report.Print(os.Stdout)
}

func TestOptionsAreChecked(t *testing.T) {
	o := Default()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	o.Window, o.Publishers = 0, []int{0}
	if text := fmt.Sprint(o.Validate()); !strings.Contains(text, "window: 0") || !strings.Contains(text, "publishers: 0") {
		t.Error(text)
	}
}
