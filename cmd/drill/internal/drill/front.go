package drill

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	"github.com/spillway-io/spillway/cmd/drill/internal/relay"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// newFront starts the balancer that stands before all edges, those too that a scenario
// starts later.
func newFront(w *world) (front, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if w.o.OneAddress == "haproxy" {
		return newHAProxy(w, addr)
	}
	cfg := relay.Config{Listen: addr}
	for _, e := range w.c.Planned() {
		cfg.Backends = append(cfg.Backends, relay.Backend{Addr: e.Addr(), Health: fmt.Sprintf("http://127.0.0.1:%d/readyz", e.OpsPort)})
	}
	command, err := w.command("relay")
	if err != nil {
		return nil, err
	}
	p, err := relay.Start(command, cfg, w.o.Clients)
	if err != nil {
		return nil, err
	}
	return builtin{p}, nil
}

// command is this program, or the one that stands for it in tests.
func (w *world) command(name string) ([]string, error) {
	if len(w.o.Binary) > 0 {
		return append(slices.Clip(w.o.Binary), name), nil
	}
	return process.Self(name)
}

// builtin is the small balancer of package relay.
type builtin struct{ *relay.Parent }

func (b builtin) URL() string { return "ws://" + b.Addr() + "/v1/ws" }

// haproxy is HAProxy: several processes on one port, as each has 20,000 descriptors and
// needs two for a client.
type haproxy struct {
	addr  string
	procs []*process.Process
}

const haproxyConns = 9_000 // of one process

func newHAProxy(w *world, addr string) (front, error) {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		return nil, run.Usagef("HAProxy is not installed (Debian's package haproxy)")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "global\n  maxconn %d\n  nbthread 1\ndefaults\n  mode tcp\n  timeout connect 3s\n  timeout client 1h\n  timeout server 1h\n", haproxyConns)
	fmt.Fprintf(&b, "  retries 3\n  option redispatch 1\nfrontend clients\n  bind %s\n  default_backend edges\nbackend edges\n  balance roundrobin\n  option httpchk GET /readyz\n", addr)
	for _, e := range w.c.Planned() {
		fmt.Fprintf(&b, "  server %s %s check port %d inter 5s fall 2 rise 2\n", e.ID, e.Addr(), e.OpsPort)
	}
	file := filepath.Join(w.c.Dir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	h := &haproxy{addr: addr}
	for range (w.o.Clients + haproxyConns*4/5 - 1) / (haproxyConns * 4 / 5) {
		p, err := process.Start(process.Config{
			Name: "haproxy", Command: []string{path, "-db", "-f", file}, Log: filepath.Join(w.c.Dir(), "haproxy.log"),
		})
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
		h.procs = append(h.procs, p)
	}
	return h, nil
}

func (h *haproxy) URL() string { return "ws://" + h.addr + "/v1/ws" }

// Close kills all and waits.
func (h *haproxy) Close() error {
	var errs []error
	for _, p := range h.procs {
		errs = append(errs, p.Kill())
	}
	h.procs = nil
	return errors.Join(errs...)
}
