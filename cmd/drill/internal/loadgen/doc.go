// Package loadgen is a load generator: thousands of clients of the client protocol
// in one light process, which count what they get and check it.
//
// The benchmark, drills and tests of whole clusters use a Parent, which starts child
// processes (the hidden command `loadgen` of cmd/drill, which calls Child) and talks to
// them in JSON lines over stdin and stdout. Run is one generator over any two files.
//
// Life: Run locks its thread and does everything on it: one epoll instance holds all
// sockets and the control file. It ends with the command stop or when the control
// file ends, so a child never outlives its parent. No goroutine but its own; the
// Parent has one for each child's stdout, which Close waits for.
//
// A client has one connection, two while it obeys a `reconnect`: it opens the new one
// with the ticket, takes each channel over when its position has reached what the new
// one was told at first, then closes the old one. Clients of the policy sdk bring
// tickets, passes and a rising attempt; all others are clients of another make.
//
// Invariants, for each connection and subscription: the next event is end+1 of the
// epoch last told; what is skipped is lost until it comes late, what comes again is
// duplicate. A client's position never goes over a hole, unless the server announced
// it: gap, and recovered=false. Events that both connections of a moving client bring
// are delivered once.
//
// Limits: MaxConns a process (20,000 descriptors; moving clients need two); SourceConns
// a source address, as past some 14,000 connects from one address each costs 760 us in
// the search for a port; IPv4, no TLS; a message or frame of at most 1 MiB. A delivery
// costs 0.3 us in user mode; on the loopback its read(2), which sends the ACK too,
// costs the kernel 4 us, less when several events lie in one read.
//
// Left out on purpose: the binary subprotocol, publishing, TLS.
package loadgen
