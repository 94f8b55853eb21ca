package loadgen

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"=floor")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	first, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready line
	if err := json.Unmarshal(first, &ready); err != nil || ready.Type != lineReady {
		t.Fatalf("%s: %v", first, err)
	}
	clients := floorClients()
	cfg := Default()
	cfg.Targets, cfg.Max, cfg.CheckPayload = []string{ready.Message}, clients, true
	cfg.Subscriptions = []Subscription{{Format: "bench:0"}}
	p, err := Start(ctx, ParentConfig{Command: []string{self}, Env: []string{roleVariable + "=generator"}, Children: 1}, cfg)
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
	if _, err := in.Write([]byte(`{"cmd":"write","n":50}` + "\n")); err != nil {
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
