// Package presence knows who is here: the nodes of the cluster, their state,
// their load, and which router owns a channel. (End users on a channel are the
// business of presence/roster, a later part.)
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
// Invariants (design, I9):
//
//	a member with a lease is in the view
//	a member is gone only if it said so, or if its lease is gone and it is silent
//	registry and bus both away: nothing changes, for however long
//	Revision changes exactly when a record of a router does, and only rises
//
// Units and limits: a figure is under 4 KiB, one a second from each router and one
// a second from each edge (every n/100 s above 100 members), so a node hears about
// 100 a second plus one for each router. Figures of unknown members are not kept.
//
// Left out on purpose: what a member's figures mean for admission (gateway), what
// ownership permits (the fence is in the store), drain plans (presence/drain).
package presence
