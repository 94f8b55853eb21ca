// Package cluster runs a whole cluster on this machine, each part a process of its
// own: NATS, etcd, routers, edges, and the store if it is PostgreSQL.
//
// Drills, benchmarks and the tests of whole clusters call it: they stop, kill and start
// parts again, each on the port and data that it had. It calls package process, which runs
// the parts. A part is this program again (see Part), or the command spillway where
// Config.Binary says so: both have the same parts with the same arguments.
//
// Life: Start returns when everything serves; Close kills what still runs, waits for
// it and removes the folder.
//
// Left out on purpose: several machines, TLS, passwords.
package cluster
