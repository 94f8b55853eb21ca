// Package presence knows who is here: the nodes of the cluster, their state, their
// load, and which router owns a channel. (Which end users are on a channel will be the
// business of another package, presence/roster.)
//
// Routers and edges call Cluster; it calls a Registry (presence/etcd) for the
// records under leases and LoadFigures (presence/nats) for the load figures of each
// second. The rules of membership are a pure state machine (type view) without
// I/O, clock or goroutine; Cluster owns those.
//
// Life: New does no I/O, Run blocks and owns four goroutines (watch, registration,
// figures, clock). When its context ends the node deregisters, on a deadline of two
// seconds. No method of Cluster but Run waits for I/O; Snapshot takes no lock.
//
// Invariants (I9):
//
//	a member with a lease is in the view
//	a member is gone only if it said so, or if its lease is gone and it is silent
//	registry and bus both away: nothing changes, for however long
//	Revision changes exactly when a record of a router does, and only rises
//
// Units and limits: a load figure is under 4 KiB. Each router sends one every second,
// and so does each edge in a cluster of up to 100 members; with n members above that an
// edge sends one every n/100 seconds. So a node hears about 100 figures a second, and one
// for each router. Figures of unknown members are not kept.
//
// A line in this package may touch the view and the clock. It leaves out on purpose what
// a member's figures mean for admission (gateway), what ownership permits (the fence is
// in the store), and drain plans (presence/drain).
package presence
