// Package machine is the client protocol of Spillway from the client's side, as a pure
// function of what happens and when.
//
// Package client carries it out with goroutines and sockets for an application, and the
// load generator of cmd/drill with one epoll loop for thousands of clients. Both report
// what happens to a Machine (Opened, Refused, Frame, Lost, Token, Tick) and do what it
// says (Take). It calls the proto tier only.
//
// A Machine has no socket, clock, goroutine or lock: whoever owns it calls its methods one
// at a time, each with a time that never goes back, carries out the actions in their
// order after each call, and calls Tick when Wake says so.
//
// It has up to two connections. link serves: commands go there. While the client moves
// to another edge, either ahead is an attempt beside it, or old is the connection that was
// left and that still delivers (move.go, merge.go):
//
//	link ──reconnect──▶ link + ahead ──connected──▶ old + link ──all taken over──▶ link
//	                      │  ▲                        │
//	                      └──┘ failed: again later    └─ link is lost: old serves again
//
// Invariants: per channel and epoch, the offsets of events that come out rise by one, or a
// TellGap stands between them; a position never goes back except to a new epoch; at most
// one attempt is in flight, and beside it at most one connection; the provider of tokens is
// asked once at a time; nothing makes it want to be woken at once for ever.
//
// Limits: 10,000 calls at a time; 4 MiB of events wait for the other connection during a
// move; ten minutes of a wait that a server tells are kept, not more.
//
// What differs between our SDKs and a client of another make is in Config.Foreign; all
// waits are in delay.go. Left out on purpose: opening sockets and the handshake, of which
// only the answer to a refusal is read here, and calling the application.
package machine
