// Package loadgen is a load generator: thousands of clients of the client protocol
// in one light process, which count what they get and check it.
//
// A client is the machine of the Go SDK (package gateway/client/machine) over sockets of
// one epoll loop. The generator decides nothing of the protocol: it opens, reads, writes
// and closes what the machine says, at the times that it says. Clients of another make
// are the same machine with another policy (see Policy). What the generator adds is what
// an application and a tester do: tokens, checksums, counts, and a look at each connection
// for what the machine would hide, such as an event that an edge sends twice.
//
// The benchmark, drills and tests of whole clusters use a Parent, which starts child
// processes (the hidden command `loadgen` of cmd/drill, which calls Child) and talks to
// them in JSON lines over stdin and stdout. Run is one generator over any two files.
//
// Life: Run locks its thread and does everything on it: one epoll instance holds all
// sockets and the control file. It ends with the command stop or when the control
// file ends, so a child never outlives its parent. It has no goroutine but its own; the
// Parent has one for each child's stdout.
//
// Invariants: a machine hears of one thing after the other, never while its actions are
// being carried out; a conn is in use by one client, and what epoll says of an earlier use
// is void.
//
// Limits: MaxConns a process (20,000 descriptors; moving clients need two); SourceConns
// a source address, as past some 14,000 connects from one address each costs 760 us in
// the search for a port; IPv4, no TLS; a message or frame of at most 1 MiB. A client with
// one subscription costs 3.6 kB of memory, an event 0.25 us in user mode beside its read(2),
// which costs the kernel some 4 us on the loopback, as it sends the ACK too.
//
// Left out on purpose: the binary subprotocol, publishing, TLS.
package loadgen
