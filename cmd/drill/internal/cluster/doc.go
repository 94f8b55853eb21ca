// Package cluster runs a whole cluster on this machine, each part a process of its
// own: NATS, etcd, routers, edges, and the store if it is PostgreSQL.
//
// Drills and the tests of whole clusters call it: they stop, kill and start parts
// again, each on the port and data that it had. The processes are those of the
// command spillway (Config.Binary), which has all parts.
//
// Life: Start returns when everything serves; Close kills what still runs, waits for
// it and removes the folder. A process never outlives the one that called Start. One
// goroutine for each process waits for its end; Close waits for them.
//
// Ports are below the range from which the kernel gives ports to clients, so that a
// part that is away for a while finds its own free again.
//
// Left out on purpose: several machines, TLS, passwords.
package cluster
