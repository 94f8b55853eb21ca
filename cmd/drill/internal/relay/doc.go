// Package relay is a TCP balancer for drills: one address before several backends,
// which can be told to cut everything that goes through it.
//
// Child is one process of it (the hidden command `relay` of cmd/drill): descriptors are
// bounded for each process, so a Parent starts several on the same port (SO_REUSEPORT).
// New connections go to the backends in turn. A backend that does not answer is passed
// over; one whose health URL fails twice in a row, asked every 5 s, gets no new ones.
//
// Life: Run does all forwarding on one thread and one epoll instance, and ends with its
// control file. One goroutine asks for health; Run waits for it.
//
// Limits: PairsPerProcess connections a process; IPv4; no TLS. A side that does not
// take what was read stops the reading of the other: one buffer of 64 KiB at most.
package relay
