// Package poller is the seam between an event loop and its sockets: who is
// ready, and non-blocking reads and writes. It knows bytes and readiness and no
// policy.
//
// Package gateway calls it; it calls the kernel (Epoll) or nothing but Go chans
// and time (Mem). Both pass one conformance test. Mem lets a whole edge run
// inside testing/synctest: a goroutine that waits in epoll_wait stops a bubble's
// clock for ever, one that waits in Mem.Wait does not.
//
// Life: one goroutine, the loop, owns a Poller and every Conn in it. Only Wake
// may be called from elsewhere. A Conn moves between loops by Remove on the one
// and Add on the other, with a happens-before between them (a mutex or a chan).
// The package starts no goroutine.
//
// Identity: readiness is reported by the token given to Add, never by
// descriptor. The kernel stores the token itself, so there is no table from
// descriptor to conn that a reused number could point into wrongly. What can
// still happen is that an Event of a conn closed earlier in the same turn is
// seen after its Close. So a token is never used twice in the life of a Poller
// (say slot | generation<<32) and the owner drops events whose token it no longer
// knows. WakeToken is reserved.
//
// Reading is level-triggered: what was not read is reported again by the next
// Wait. Writability is reported only while SetWrite is on, and is wanted only
// after a short Write.
//
// Limits: an idle conn costs 16 B here and no buffer. Left out: TLS, timers,
// buffers, accepting policy.
package poller

import (
	"errors"
	"math"
	"net/netip"
	"time"
)

// WakeToken cannot be given to Add.
const WakeToken uint64 = math.MaxUint64

// Errors that callers branch on, besides io.EOF and net.ErrClosed. Others are
// wrapped errnos of the call that failed; the conn is then of no use.
var (
	// ErrReset: the peer is gone (ECONNRESET), or this end can no longer be
	// written (EPIPE).
	ErrReset = errors.New("poller: connection reset")
	// ErrDescriptors: accept found no descriptor or socket memory left (EMFILE,
	// ENFILE, ENOBUFS, ENOMEM). The client is still in the backlog; see Reserve.
	ErrDescriptors = errors.New("poller: out of descriptors")
	// ErrForeign: the source was made by another implementation, is registered
	// already, or is not registered.
	ErrForeign = errors.New("poller: source is not one of this poller")
)

// ErrAgain means "not now": nothing to read or to accept, no room to write.
// It is a net.Error that is Temporary, which is what keeps crypto/tls from
// remembering it as the end of the conn.
var ErrAgain error = again{}

type again struct{}

func (again) Error() string   { return "poller: not ready" }
func (again) Timeout() bool   { return false }
func (again) Temporary() bool { return true }

// Conn is one non-blocking stream socket. Not safe for concurrent use. Every
// method after Close gives net.ErrClosed, Close and Reset themselves nil.
type Conn interface {
	// Read never blocks. It returns n > 0 and no error, or ErrAgain, io.EOF once
	// the peer has shut its half, ErrReset, or a wrapped errno. p is the caller's.
	Read(p []byte) (int, error)
	// Write never blocks and never raises SIGPIPE. It may take less than p:
	// 0 < n < len(p) comes without an error, n == 0 with ErrAgain. p is not kept.
	Write(p []byte) (int, error)
	// CloseWrite sends FIN after what was written; reading goes on.
	CloseWrite() error
	// Close gives the descriptor back and leaves the poller. Unread input turns
	// it into a reset, which can eat what was written just before: CloseWrite
	// and read to io.EOF first.
	Close() error
	// Reset closes at once with RST; what is not yet sent is lost.
	Reset() error
	// RemoteAddr asks the socket (one system call, nothing is stored); it is the
	// zero AddrPort once the peer is gone.
	RemoteAddr() netip.AddrPort
}

// Listener accepts conns. One listener may be in several pollers; Accept and
// Close of it are safe for concurrent use.
type Listener interface {
	// Accept never blocks: ErrAgain when nobody waits, ErrDescriptors,
	// net.ErrClosed, or a wrapped errno. Clients that left the backlog again are
	// skipped.
	Accept() (Conn, error)
	Addr() netip.AddrPort
	// Close is idempotent; clients in the backlog are reset.
	Close() error
}

// Source is a Conn or a Listener of the same implementation as the Poller.
type Source interface{ Close() error }

// Event is the readiness of one source.
type Event struct {
	Token    uint64
	Readable bool // bytes, a FIN or an error to read; a client to accept
	Writable bool // only while SetWrite is on
	Hangup   bool // the peer sent FIN or RST, perhaps behind unread bytes
}

// Poller waits for many sources at once. Only its owner calls it, except Wake.
type Poller interface {
	// Add watches s for reading. The token comes back in every Event of s.
	Add(s Source, token uint64) error
	// SetRead and SetWrite turn interest on and off; telling what is already so
	// costs nothing. Hangup is reported even if both are off, so that a client
	// can be left unread and still be seen to leave.
	SetRead(c Conn, on bool) error
	SetWrite(c Conn, on bool) error
	// Remove stops watching s and leaves it open. After it no Wait reports s.
	Remove(s Source) error
	// Wait appends what is ready to dst and returns it; dst is the caller's.
	// timeout < 0 waits for ever, 0 not at all; Epoll rounds it up to 1 ms. No
	// event and no error: the time is over or somebody called Wake.
	Wait(dst []Event, timeout time.Duration) ([]Event, error)
	// Wake makes the running or else the next Wait return at once. Safe from any
	// goroutine, never blocks. Calls are coalesced, and one costs an atomic swap
	// unless the loop is asleep.
	Wake()
	// Close frees the poller; its sources stay open. Wait must not be running.
	// Wake after Close does nothing.
	Close() error
}
