package loadgen

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
)

// floorClients may be raised to see what a delivery costs:
//
//	SPILLWAY_FLOOR_CLIENTS=10000 go test -run Floor -v ./cmd/drill/internal/loadgen
func floorClients() int {
	if n, err := strconv.Atoi(os.Getenv("SPILLWAY_FLOOR_CLIENTS")); err == nil {
		return n
	}
	return 200
}

func TestTheFloorServesTheGenerator(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan line, 1)
	floor, err := process.Start(process.Config{Name: "floor", Command: self, Env: []string{roleVariable + "=floor"}, Line: func(text []byte) {
		var v line
		_ = json.Unmarshal(text, &v)
		ready <- v
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := floor.Hush(closeGrace); err != nil {
			t.Error(err)
		}
	}()
	first := <-ready
	clients := floorClients()
	cfg := Default()
	cfg.Targets, cfg.Max, cfg.CheckPayload = []string{first.Message}, clients, true
	cfg.Subscriptions = []Subscription{{Format: "bench:0"}}
	p, err := Start(ctx, ParentConfig{Command: self, Env: []string{roleVariable + "=generator"}, Children: 1}, cfg)
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
	if err := floor.Tell(command{Cmd: "write", N: events}); err != nil {
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
