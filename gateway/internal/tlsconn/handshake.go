package tlsconn

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

// MaxFlightBytes bounds what a client may send before its handshake has ended.
const MaxFlightBytes = 64 << 10

// Errors of a handshake.
var (
	ErrAborted = errors.New("tls: the handshake was given up")
	ErrFlight  = errors.New("tls: too many bytes before the end of the handshake")
)

// Handshake is a TLS handshake under way. Its owner calls Feed with what the socket
// had and Step whenever wake was called. Not safe for concurrent use.
type Handshake struct {
	// immutable after Begin
	raw  poller.Conn
	conn *Conn
	wake func()

	// owned by the owner
	unsent []byte

	mu    sync.Mutex // guards below
	more  sync.Cond
	in    []byte // fed, not yet read
	out   []byte // said, not yet taken
	err   error
	ended bool
}

// Begin starts a handshake over raw. wake is called, from the handshake's goroutine,
// when Step has something to do; it must not block.
func Begin(raw poller.Conn, cfg *tls.Config, wake func()) *Handshake {
	h := &Handshake{raw: raw, wake: wake}
	h.more.L = &h.mu
	h.conn = &Conn{raw: raw}
	h.conn.shim.handshake, h.conn.shim.conn = h, h.conn
	h.conn.tls = tls.Server(&h.conn.shim, cfg)
	// It ends with the handshake, by Abort at the latest; nobody need wait: after
	// Abort it touches nothing but h.
	go h.run()
	return h
}

func (h *Handshake) run() {
	err := h.conn.tls.Handshake()
	h.mu.Lock()
	h.ended = true
	if h.err == nil {
		h.err = err
	}
	h.mu.Unlock()
	h.wake()
}

// Feed gives bytes of the socket; they are copied.
func (h *Handshake) Feed(b []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.in)+len(b) > MaxFlightBytes {
		return ErrFlight
	}
	h.in = append(h.in, b...)
	h.more.Signal()
	return nil
}

// Step writes what the handshake has said. done says that it has ended: conn is the
// TLS conn, or err why there is none; the last words (an alert) have been written.
// It needs no poller: what a fresh socket does not take at once is tried again by
// the next Step.
func (h *Handshake) Step() (conn *Conn, done bool, err error) {
	h.mu.Lock()
	h.unsent = append(h.unsent, h.out...)
	h.out = nil
	ended, failed := h.ended, h.err
	h.mu.Unlock()
	for len(h.unsent) > 0 {
		n, err := h.raw.Write(h.unsent)
		h.unsent = h.unsent[n:]
		if errors.Is(err, poller.ErrAgain) {
			break
		}
		if err != nil {
			h.Abort()
			return nil, true, err
		}
	}
	switch {
	case !ended:
		return nil, false, nil
	case failed != nil:
		return nil, true, failed
	}
	c := h.conn
	c.shim.handshake = nil
	c.shim.in, h.in = rest(h.in), nil
	c.shim.out, h.unsent = rest(h.unsent), nil
	slim(c.tls, 0)
	return c, true, nil
}

// rest is what is left of b, of its own size: b lies in the flights of the handshake,
// which an idle conn must not hold for ever.
func rest(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return bytes.Clone(b)
}

// Abort ends the goroutine; the socket stays the caller's. Idempotent.
func (h *Handshake) Abort() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil && !h.ended {
		h.err = ErrAborted
	}
	h.more.Signal()
}

// read blocks until bytes were fed; called by the handshake's goroutine.
func (h *Handshake) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.in) == 0 && len(h.out) > 0 {
		h.wake()
	}
	for len(h.in) == 0 && h.err == nil {
		h.more.Wait()
	}
	if h.err != nil {
		return 0, h.err
	}
	n := copy(p, h.in)
	h.in = h.in[n:]
	return n, nil
}

func (h *Handshake) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return 0, h.err
	}
	h.out = append(h.out, p...)
	return len(p), nil
}

// shim is the net.Conn below crypto/tls: a blocking one in memory during the
// handshake, the socket after it.
type shim struct {
	handshake *Handshake // nil after it
	conn      *Conn
	in        []byte // read from the socket by the handshake's owner
	out       []byte // records, or rests of them, that the socket did not take
	err       error  // of the socket; sticky
}

func (s *shim) Read(p []byte) (int, error) {
	switch {
	case s.handshake != nil:
		return s.handshake.read(p)
	case len(s.in) > 0:
		n := copy(p, s.in)
		if s.in = s.in[n:]; len(s.in) == 0 {
			s.in = nil
		}
		return n, nil
	}
	return s.raw().Read(p)
}

// Write accepts everything: crypto/tls takes a short write for the end of the conn.
func (s *shim) Write(p []byte) (int, error) {
	if s.handshake != nil {
		return s.handshake.write(p)
	}
	if s.err != nil {
		return 0, s.err
	}
	rest := p
	if len(s.out) == 0 {
		n, err := s.raw().Write(p)
		if err != nil && !errors.Is(err, poller.ErrAgain) {
			s.err = err
			return 0, err
		}
		rest = p[n:]
	}
	s.out = append(s.out, rest...)
	return len(p), nil
}

// flush writes what is queued; true: nothing is left.
func (s *shim) flush() bool {
	for len(s.out) > 0 && s.err == nil {
		n, err := s.raw().Write(s.out)
		s.out = s.out[n:]
		if errors.Is(err, poller.ErrAgain) {
			return false
		}
		s.err = err
	}
	if s.err != nil {
		return true
	}
	s.out = nil
	return true
}

func (s *shim) raw() poller.Conn { return s.conn.raw }

// The rest of net.Conn, which crypto/tls asks of it and which means nothing here.

func (*shim) Close() error                     { return nil }
func (s *shim) LocalAddr() net.Addr            { return nil }
func (s *shim) RemoteAddr() net.Addr           { return nil }
func (*shim) SetDeadline(time.Time) error      { return nil }
func (*shim) SetReadDeadline(time.Time) error  { return nil }
func (*shim) SetWriteDeadline(time.Time) error { return nil }

var _ net.Conn = (*shim)(nil)
