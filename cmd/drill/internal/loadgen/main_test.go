package loadgen

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test program is its own child process.
const roleVariable = "SPILLWAY_LOADGEN_TEST_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "generator":
		err = Child()
	default:
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
