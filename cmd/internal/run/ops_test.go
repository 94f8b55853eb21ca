package run

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func get(t *testing.T, ops *Ops, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + ops.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestOpsAnswersBeforeRunAndSaysNotReady(t *testing.T) {
	var ready atomic.Bool
	ops, err := ListenOps(t.Context(), OpsConfig{Addr: "127.0.0.1:0", Ready: ready.Load, Registry: NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, ops, "/healthz"); code != 200 {
		t.Errorf("healthz %d", code)
	}
	if code, _ := get(t, ops, "/readyz"); code != 503 {
		t.Errorf("readyz %d before", code)
	}
	ready.Store(true)
	if code, _ := get(t, ops, "/readyz"); code != 200 {
		t.Errorf("readyz %d after", code)
	}
	if code, body := get(t, ops, "/metrics"); code != 200 || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics %d", code)
	}
	if code, _ := get(t, ops, "/debug/pprof/"); code != 404 {
		t.Errorf("pprof without being asked: %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ops.Run(ctx); err != nil {
		t.Error(err)
	}
	ops.Close()
	if _, err := net.DialTimeout("tcp", ops.Addr(), time.Second); err == nil {
		t.Error("it still listens")
	}
}

func TestPortTakenNamesWhoAndHow(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = ListenOps(t.Context(), OpsConfig{Addr: other.Addr().String(), What: "ops listener of edge-1", Key: "ops_listen"})
	var taken *PortTakenError
	if !errors.As(err, &taken) || taken.Addr != other.Addr().String() || Code(err) != ExitUsage {
		t.Errorf("got %v", err)
	}
	_, err = ListenOps(t.Context(), OpsConfig{Addr: "192.0.2.1:1", What: "ops"})
	if Code(err) != ExitUsage || strings.Contains(err.Error(), "bind:") {
		t.Errorf("foreign address: %v", err)
	}
}

// A signal ends ctx; a second one that comes with it (timeout(1) sends two) is the
// same; a later one ends abort.
func TestSignalsAreCountedOnce(t *testing.T) {
	ctx, abort, stop := Signals(t.Context())
	defer stop()
	start := time.Now()
	for range 2 {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
	}
	if abort.Err() != nil && time.Since(start) < sameSignal { // a machine that stands still proves nothing
		t.Error("two signals at once ended abort")
	}
	for deadline := time.After(20 * time.Second); ; {
		select {
		case <-time.After(sameSignal):
			if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		case <-abort.Done():
			return
		case <-deadline:
			t.Fatal("abort did not end")
		}
	}
}
