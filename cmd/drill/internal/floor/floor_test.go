package floor

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	"github.com/spillway-io/spillway/cmd/drill/internal/process"
)

// floorClients may be raised to see what a delivery costs:
//
//	SPILLWAY_FLOOR_CLIENTS=10000 go test -run Floor -v ./cmd/drill/internal/floor
func floorClients() int {
	if n, err := strconv.Atoi(os.Getenv("SPILLWAY_FLOOR_CLIENTS")); err == nil {
		return n
	}
	return 200
}

const (
	roleVariable = "SPILLWAY_FLOOR_TEST_ROLE"
	patience     = 40 * time.Second
)

// TestMain is the test, or one of its child processes.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "generator":
		err = loadgen.Child()
	case "floor":
		err = Serve(Config{Channel: "bench:0", PayloadBytes: 128}, os.Stdin, os.Stdout)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestTheFloorServesTheGenerator(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	floor, err := Start(process.Config{Command: self, Env: []string{roleVariable + "=floor"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := floor.CloseInput(patience); err != nil {
			t.Error(err)
		}
	}()
	clients := floorClients()
	cfg := loadgen.Default()
	cfg.Targets, cfg.Max, cfg.CheckPayload = []string{floor.URL}, clients, true
	cfg.Subscriptions = []loadgen.Subscription{{Format: "bench:0"}}
	p, err := loadgen.Start(ctx, loadgen.ParentConfig{Command: self, Env: []string{roleVariable + "=generator"}, Children: 1}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Want(clients); err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitUp(ctx, clients); err != nil {
		t.Fatal(err)
	}
	if err := p.Mark(ctx, "fan-out"); err != nil {
		t.Fatal(err)
	}
	const events = 50
	began := time.Now()
	if err := floor.Write(events); err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitDeliveries(ctx, events*uint64(clients)); err != nil {
		t.Fatal(err)
	}
	r, err := p.Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.Phase.Deliveries != events*uint64(clients) || !r.Phase.Clean() || r.Phase.SeqSkips != 0 {
		t.Errorf("%+v", r.Phase)
	}
	t.Logf("%d deliveries in %v: generator %v each in %.2f reads", r.Phase.Deliveries, time.Since(began),
		r.CPU/time.Duration(r.Phase.Deliveries), float64(r.Phase.Reads)/float64(r.Phase.Deliveries))
}
