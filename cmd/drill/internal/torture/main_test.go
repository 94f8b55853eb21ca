package torture

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
)

var (
	long    = flag.Bool("long", false, "faults last as long as in production: leases run out, the bus is away for 20 s")
	minutes = flag.Float64("minutes", 0, "how long each trial is under faults; 0: a few seconds")
	seed    = flag.Uint64("seed", 0, "of the faults; 0: from the clock")
)

// TestMain is the test, or one process of a trial's cluster.
func TestMain(m *testing.M) {
	if code, isPart := cluster.Part(os.Args[1:], breakage()); isPart {
		os.Exit(code)
	}
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	os.Exit(m.Run())
}
