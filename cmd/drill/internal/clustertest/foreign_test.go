package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
)

// TestAForeignClientGetsEveryWebhook plays real webhook bodies to npm's ws.
func TestAForeignClientGetsEveryWebhook(t *testing.T) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("npm is not installed: a client that is not ours needs Node")
		}
		t.Skip("npm is not installed: a client that is not ours needs Node")
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "webhooks.mjs"} {
		text, err := os.ReadFile(filepath.Join("testdata/foreign", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install := exec.CommandContext(t.Context(), npm, "install", "--no-audit", "--no-fund", "--no-package-lock")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	grpcPort, wsPort := freePort(t), freePort(t)
	dev, err := process.Start(process.Config{Name: "dev", Command: []string{
		binary, "dev", "--edges", "1", "--grpc-port", fmt.Sprint(grpcPort), "--ws-port", fmt.Sprint(wsPort), "--http-port", "0", "--ops-port", "0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Kill() })
	router := fmt.Sprintf("127.0.0.1:%d", grpcPort)
	Eventually(t, 30*time.Second, "dev is up", func() bool {
		return exec.CommandContext(t.Context(), binary, "nodes", "--server", router).Run() == nil
	})
	play := exec.CommandContext(t.Context(), "node", "webhooks.mjs", binary, router, fmt.Sprintf("ws://127.0.0.1:%d/v1/ws", wsPort))
	play.Dir = dir
	out, err := play.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
