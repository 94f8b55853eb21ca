package edgenode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
)

// What the file, the token keys and the edge's own Validate find is told together.
func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	dir := t.TempDir()
	secret, file := filepath.Join(dir, "secret"), filepath.Join(dir, "gateway.yaml")
	for path, text := range map[string]string{
		secret: "short\n",
		file: "listen: nowhere\nlimits: {max_conns: 5, margin: 9}\nadvertise_url: http://x/\ncolour: red\n" +
			"auth: {hs256_secret_file: " + secret + "}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := gatewayfile.Load(config.Source{File: file, Environ: []string{"SPILLWAY_LIMITS__SEND_QUEUE_BYTES=1"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"colour: unknown key", "listen: \"nowhere\"", "limits.max_conns: 5", "advertise_url: http://x/",
		"environment: SPILLWAY_LIMITS__SEND_QUEUE_BYTES: 1: must be at least 4 KiB", "auth: ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "short") {
		t.Errorf("more than a line, or a secret: %v", err)
	}
}

// The defaults of the file are those of the edge.
func TestDefaultsAgree(t *testing.T) {
	f := gatewayfile.Default()
	f.Auth.Anonymous = true
	if err := gatewayConfig(&f).Validate(); err != nil {
		t.Error(err)
	}
}
