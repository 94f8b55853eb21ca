// Package infra runs a NATS server and an etcd inside this process, for `spillway
// dev`, `spillway infra` and tests. cmd/gateway and cmd/router do not link it.
//
// Start starts both at once (a tenth of a second together) and returns when they
// answer; Close stops both and waits. Both listen on the loopback only. Data of
// etcd stay in Config.Dir, which one process may use at a time; NATS core keeps
// none. Goroutines are those of the servers.
//
// Left out on purpose: clusters of either, TLS, passwords.
package infra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/cmd/internal/run"
	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	"github.com/spillway-io/spillway/presence/nats/natsserver"
)

// Config of Start.
type Config struct {
	Dir      string // holds the data of etcd; made if need be; "": a temporary one that Close removes
	NATSPort int    // 0 picks one
	EtcdPort int    // of clients; 0 picks one
	NoNATS   bool
	NoEtcd   bool
}

// Infra is what runs.
type Infra struct {
	dir  *Dir
	nats *natsserver.Server
	etcd *etcdserver.Server
}

// Start returns when everything answers. Errors: *run.PortTakenError, *DirTakenError,
// or what a server says.
func Start(ctx context.Context, cfg Config) (*Infra, error) {
	in := &Infra{}
	var g errgroup.Group // waited for below; the servers bound their own starts
	if !cfg.NoNATS {
		g.Go(func() (err error) {
			in.nats, err = natsserver.Start(ctx, cfg.NATSPort)
			return portTaken(err)
		})
	}
	if !cfg.NoEtcd {
		g.Go(func() error { return in.startEtcd(ctx, cfg) })
	}
	if err := g.Wait(); err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

func (in *Infra) startEtcd(ctx context.Context, cfg Config) (err error) {
	if in.dir, err = OpenDir(cfg.Dir); err != nil {
		return err
	}
	in.etcd, err = etcdserver.Start(ctx, etcdserver.Config{Dir: filepath.Join(in.dir.Path, "etcd"), Port: cfg.EtcdPort})
	return portTaken(err)
}

func portTaken(err error) error {
	var n *natsserver.PortTakenError
	var e *etcdserver.PortTakenError
	switch {
	case errors.As(err, &n):
		return &run.PortTakenError{What: "nats", Addr: n.Addr, Key: "--nats-port"}
	case errors.As(err, &e):
		return &run.PortTakenError{What: "etcd", Addr: e.Addr, Key: "--etcd-port"}
	}
	return err
}

// NATSURL is where NATS takes clients; "" if it does not run.
func (in *Infra) NATSURL() string {
	if in.nats == nil {
		return ""
	}
	return in.nats.URL()
}

// EtcdEndpoint is where etcd takes clients; "" if it does not run.
func (in *Infra) EtcdEndpoint() string {
	if in.etcd == nil {
		return ""
	}
	return in.etcd.Endpoint()
}

// Close stops what runs and waits. Idempotent.
func (in *Infra) Close() {
	var g errgroup.Group // waited for below
	if s := in.nats; s != nil {
		g.Go(func() error { s.Close(); return nil })
	}
	if s := in.etcd; s != nil {
		g.Go(func() error { s.Close(); return nil })
	}
	_ = g.Wait()
	if in.dir != nil {
		in.dir.Close()
	}
	*in = Infra{}
}

// DirTakenError says that another process works in a folder.
type DirTakenError struct{ Path string }

func (e *DirTakenError) Error() string {
	return fmt.Sprintf("data folder %s is in use by another process", e.Path)
}

// ExitCode is that of wrong usage.
func (e *DirTakenError) ExitCode() int { return run.ExitUsage }

// Dir is a data folder that this process alone works in.
type Dir struct {
	Path string

	lock      *os.File
	temporary bool
}

// OpenDir makes the folder if need be, and locks it: two etcd in one folder wait for
// each other without a word. "" makes a temporary one.
func OpenDir(path string) (*Dir, error) {
	d := &Dir{Path: path, temporary: path == ""}
	var err error
	if d.temporary {
		d.Path, err = os.MkdirTemp("", "spillway-")
	} else {
		err = os.MkdirAll(path, 0o700)
	}
	if err != nil {
		return nil, run.Usagef("data folder: %v", err)
	}
	if d.lock, err = os.OpenFile(filepath.Join(d.Path, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, run.Usagef("data folder: %v", err)
	}
	// Given back by the kernel too, if the process is killed.
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = d.lock.Close()
		return nil, &DirTakenError{d.Path}
	}
	return d, nil
}

// Close gives the folder back; a temporary one is removed.
func (d *Dir) Close() {
	if d.temporary {
		_ = os.RemoveAll(d.Path)
	}
	_ = d.lock.Close()
}
