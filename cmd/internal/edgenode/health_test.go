package edgenode

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
)

// I8: bus, etcd and routers are away, the door has more visitors than it admits, and
// half of them say nothing. The process turns, so healthz says 200; it has not
// joined, so readyz says 503.
func TestHealthzIs200WhileAllElseIsAwayOrBusy(t *testing.T) {
	f := gatewayfile.Default()
	f.ID, f.Listen, f.OpsListen, f.Auth.Anonymous = "edge-1", "127.0.0.1:0", "127.0.0.1:0", true
	f.NATS.URLs, f.Etcd.Endpoints = []string{"nats://127.0.0.1:1"}, []string{"http://127.0.0.1:1"}
	f.Admission.FreshPerSecond, f.Admission.FreshBurst = 1, 1
	f.DrainDeadline = 2 * time.Second
	n, err := New(t.Context(), &f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	abort, hurry := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, abort) }() // ended below
	defer func() {
		hurry()
		cancel()
		<-done
	}()
	for i := range 400 {
		conn, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		request := "GET /v1/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
		if i%2 == 0 {
			request += "\r\n"
		}
		_, _ = io.WriteString(conn, request)
	}
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for range 20 {
		for path, want := range map[string]int{"/healthz": 200, "/readyz": 503} {
			resp, err := client.Get("http://" + n.OpsAddr() + path)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s says %s", path, resp.Status)
			}
		}
	}
}
