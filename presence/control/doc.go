// Package control is what the members of a cluster agree on beside who they are:
// the ring of ticket keys, revocations, operations (drains, evacuations,
// rebalances) and hot settings. All of it is kept in a key-value store (presence/etcd)
// without leases, so it outlives whoever wrote it.
//
// A member makes one Control and calls Run. Edges read keys, revocations, operations
// and settings, and write operations; routers write the rest. Reads take no lock and
// never wait; writes wait for the key-value store, with a deadline of their own.
//
// Life: New does no I/O. Run follows the key-value store, and the bus if there is one,
// until its context ends; it has three goroutines and waits for them. While the
// key-value store is away everything that is known stays as it is, for as long as it
// takes.
//
// Invariants:
//   - A key id means one key for all members: keys are created if absent, the
//     loser takes the winner's. One is deleted only when no ticket under it can live.
//   - OnRevocation is called once for each revocation that a process hears of, from
//     the bus, from a watch or from a listing after an absence.
//   - An ended operation never runs again; of two that exclude each other only one is
//     ever running, since a new one is written on condition that nothing was written
//     among the operations since they were read.
//   - A key-value store that went back to an older state (a restore) gets from memory
//     what it forgot: what is known wins.
//
// Clocks of members may differ by minutes. What would be lost by a clock that is
// wrong by more (the deletion of a key) needs in addition that this process itself
// has seen the successor for the whole time.
//
// Limits: 100,000 revocations of single tokens, then a token is revoked with all
// others of its user; 1,000 ended operations; 64 KiB of settings. Measured with
// 100,000 on two cores, etcd beside: 48 MB in memory, 23 MB a listing, 7 s from the
// start to Ready, 0.3 s of work for a listing that brings nothing new.
//
// Left out on purpose: what an operation does (gateway, router), who may write
// (AdminService), what settings mean (cmd).
package control
