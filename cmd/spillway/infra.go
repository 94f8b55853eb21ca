package main

import (
	"fmt"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/infra"
)

type infraCmd struct {
	NATSPort int    `help:"Port of NATS; 0 picks one." default:"4222" name:"nats-port"`
	EtcdPort int    `help:"Port of etcd; 0 picks one." default:"2379" name:"etcd-port"`
	Only     string `help:"Run one of them only: nats or etcd." enum:",nats,etcd" default:""`
	Data     string `help:"Folder of etcd's data; default: a temporary one." placeholder:"DIR" type:"path"`
}

// Run prints where the servers listen, then "ready", and waits for a signal.
func (c *infraCmd) Run(e *env) error {
	begun := time.Now()
	in, err := infra.Start(e.ctx, infra.Config{
		Dir: c.Data, NATSPort: c.NATSPort, EtcdPort: c.EtcdPort, NoNATS: c.Only == "etcd", NoEtcd: c.Only == "nats",
	})
	if err != nil {
		return err
	}
	defer in.Close()
	if url := in.NATSURL(); url != "" {
		fmt.Println("nats", url)
	}
	if endpoint := in.EtcdEndpoint(); endpoint != "" {
		fmt.Println("etcd", endpoint)
	}
	fmt.Printf("ready after %v, on this machine only; ctrl-C stops it\n", time.Since(begun).Round(10*time.Millisecond))
	<-e.ctx.Done()
	return nil
}
