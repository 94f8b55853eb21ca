package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// devSecret makes the secret that tokens of `spillway dev` are signed with, once.
func devSecret(path string) (string, error) {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return path, os.WriteFile(path, []byte(hex.EncodeToString(b[:])+"\n"), 0o600)
}

// greet says where everything listens and what to try next. It begins to speak when
// everything works.
func (c *devCmd) greet(to io.Writer, d *devCluster, dir string, took time.Duration) {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("Spillway is ready after %v. It is for development: it listens on this machine only,", took.Round(10*time.Millisecond))
	line("and clients without a token are welcome and may do everything.")
	line("")
	line("  router    gRPC  %s   (reflection is on)", d.router.Addr())
	line("            HTTP  http://%s", d.router.HTTPAddr())
	line("            ops   http://%s   /metrics /healthz /readyz", d.router.OpsAddr())
	for i, edge := range d.edges {
		line("  edge-%-4d ws://%s/v1/ws   http://%s", i+1, edge.Addr(), edge.OpsAddr())
	}
	line("  nats      %s", d.infra.NATSURL())
	line("  etcd      %s", d.infra.EtcdEndpoint())
	if c.Data == "" {
		line("  data      %s   (removed at the end; --data DIR keeps it)", dir)
	} else {
		line("  data      %s", dir)
	}
	self, server, edge := invocation(), "", ""
	if c.GRPCPort != 8390 {
		server = " --server " + d.router.Addr()
	}
	if c.WSPort != 8400 {
		edge = " --edge ws://" + d.edges[0].Addr() + "/v1/ws"
	}
	line("")
	line("Try next, each in a terminal of its own:")
	line("  %s subscribe%s chat:room-7", self, edge)
	line(`  %s publish%s chat:room-7 '{"text":"hello"}'`, self, server)
	line(`  curl http://%s/v1/publish -d '{"channel":"chat:room-7","data":{"text":"from curl"}}'`, d.router.HTTPAddr())
	line("  %s nodes%s", self, server)
	line("")
	line("A token for a user with a name:")
	line("  %s token --sub ann --channels 'chat:*' --secret-file %s", self, d.secret)
	line("ctrl-C stops everything.")
	_, _ = io.WriteString(to, b.String())
}

// invocation is how this program was started, as far as that can be typed again.
func invocation() string {
	path, err := os.Executable()
	if err != nil || strings.Contains(path, "go-build") {
		return "go run ./cmd/spillway"
	}
	if dir := filepath.Dir(os.Args[0]); dir != "." || strings.HasPrefix(os.Args[0], "."+string(filepath.Separator)) {
		return os.Args[0]
	}
	return filepath.Base(os.Args[0])
}
