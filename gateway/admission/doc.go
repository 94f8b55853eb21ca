// Package admission decides who comes in: lanes over sustained-rate buckets, a
// waiting room, slots and passes for those who are refused, the grants that a
// leaving edge asks of this one, and a ceiling that falls under load.
//
// Package gateway calls it under one mutex (the door decides arrivals, the bus asks
// for grants, the membership tells who is there); it calls nothing. It is pure: no
// clock, no goroutine, no I/O; time and randomness are passed in. A test, or a
// simulation of a hundred edges, drives it as the door does.
//
//	arrival -> lane (moved | resume | fresh)
//	   a token, nobody ahead  -> admit
//	   within Wait by the rate -> wait: passes first, then first come first served
//	   else                    -> refuse: a slot and a pass of its own, or a random wait
//
// Invariants: I5 in every window of length T and each lane, admitted <= burst + rate
// * T, and moved <= what confirmed grants allow; fresh conns <= MaxConns - Margin,
// others <= MaxConns; a grant never takes the room that another one holds; slots of
// a lane are never nearer than its rate allows and never more than 30 s out.
//
// Limits: the room holds what the lanes can serve in Wait and MaxWaiting in all; a
// lane remembers 30 s of slots; grants are bounded in number, marks of used tickets in
// bytes (8 MiB).
//
// Left out on purpose: sockets, tickets and their keys (the caller mints a pass for
// the slot that a Decision names), and what passes before TLS.
package admission
