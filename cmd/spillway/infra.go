package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spillway-io/spillway/presence/etcd/etcdserver"
	"github.com/spillway-io/spillway/presence/nats/natsserver"

	"github.com/spillway-io/spillway/cmd/internal/run"
)

type infraCmd struct {
	NATSPort int    `help:"Port of NATS." default:"4222" name:"nats-port"`
	EtcdPort int    `help:"Port of etcd." default:"2379" name:"etcd-port"`
	Only     string `help:"Run one of them only: nats or etcd." enum:",nats,etcd" default:""`
	Data     string `help:"Folder of etcd's data; default: a temporary one." type:"path"`
}

func (c *infraCmd) Run(e *env) error {
	if c.Only != "etcd" {
		n, err := natsserver.Start(e.ctx, c.NATSPort)
		if err != nil {
			return startError(err)
		}
		defer n.Close()
		fmt.Println("nats", n.URL())
	}
	if c.Only != "nats" {
		dir, cleanup, err := dataDir(c.Data)
		if err != nil {
			return err
		}
		defer cleanup()
		s, err := etcdserver.Start(e.ctx, etcdserver.Config{Dir: filepath.Join(dir, "etcd"), Port: c.EtcdPort})
		if err != nil {
			return startError(err)
		}
		defer s.Close()
		fmt.Println("etcd", s.Endpoint())
	}
	fmt.Println("ready")
	<-e.ctx.Done()
	return nil
}

// startError makes a port that is taken a matter of usage.
func startError(err error) error {
	var n *natsserver.PortTakenError
	var s *etcdserver.PortTakenError
	if errors.As(err, &n) || errors.As(err, &s) {
		return run.Usagef("%v", err)
	}
	return err
}

// dataDir is the folder named, made if need be, or a temporary one that cleanup
// removes.
func dataDir(named string) (dir string, cleanup func(), err error) {
	if named != "" {
		return named, func() {}, os.MkdirAll(named, 0o700)
	}
	dir, err = os.MkdirTemp("", "spillway-")
	return dir, func() { os.RemoveAll(dir) }, err
}
