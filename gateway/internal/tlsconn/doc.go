// Package tlsconn lets crypto/tls live in an event loop: a server-side TLS conn that
// is a poller.Conn, and a Poller over another that knows what such a conn holds back.
// Bytes and readiness only, no policy.
//
// Package gateway calls it; it calls crypto/tls and a poller.
//
// A handshake (Handshake) cannot be driven without blocking: crypto/tls remembers any
// error of it. So each runs on a goroutine of its own that reads from memory; the
// owner of the socket feeds it and writes what it says, and alone touches the socket.
// It ends with the handshake, with Abort, or by itself when the peer breaks TLS.
// How many run at once is the caller's to bound: each costs some 30 KB.
//
// After that (Conn) temporary read errors are not sticky, so Read is tried whenever
// the socket is readable. Write errors are sticky: what the socket does not take of a
// record is queued here, and no more is accepted until it is gone. At most one chunk
// of Write (16 KiB and its overhead) waits so.
//
// Two things are invisible to a poller: bytes that crypto/tls has read and not handed
// out, and a queue that its owner does not know of. Poller reports the first as
// readable, and flushes the second itself.
//
// Limits: an idle conn costs 3.7 KB, half of what crypto/tls would keep. The other half
// is freed by slim, which is off with versions of Go that it was not tested with. Left
// out: session tickets (they save nothing here), client certificates' policy,
// renegotiation.
package tlsconn
