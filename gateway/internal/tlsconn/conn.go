package tlsconn

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

// chunk is the most plaintext of one Write: a record.
const chunk = 16 << 10

// Conn is a TLS conn after its handshake, as a loop sees a socket. It may only be in
// a Poller of this package.
type Conn struct {
	raw  poller.Conn
	tls  *tls.Conn
	shim shim

	poller   *Poller // that it is in; nil: none
	token    uint64
	wantRead bool // its owner's interest
	wantSend bool
	finish   bool // shut our half once the queue is gone
	closed   bool
}

var _ poller.Conn = (*Conn)(nil)

// State is what was negotiated.
func (c *Conn) State() tls.ConnectionState { return c.tls.ConnectionState() }

// Read is described at poller.Conn. An alert or a broken record is an error.
func (c *Conn) Read(p []byte) (int, error) {
	if c.closed {
		return 0, net.ErrClosed
	}
	n := 0
	for n < len(p) {
		m, err := c.tls.Read(p[n:])
		n += m
		if errors.Is(err, poller.ErrAgain) {
			slim(c.tls, keptBytes)
			c.note()
			if n > 0 {
				return n, nil
			}
			return 0, poller.ErrAgain
		}
		if err != nil {
			c.note()
			if n > 0 {
				c.pending() // crypto/tls says it again
				return n, nil
			}
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return 0, io.EOF // a peer that shut its half without an alert
			}
			return 0, err
		}
	}
	c.note()
	c.pending() // there may be more than the socket shows
	return n, nil
}

// Write is described at poller.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.closed {
		return 0, net.ErrClosed
	}
	total := 0
	for total < len(p) {
		if len(c.shim.out) > 0 && !c.shim.flush() {
			break
		}
		n, err := c.tls.Write(p[total:min(len(p), total+chunk)])
		total += n
		if err != nil {
			return total, err
		}
	}
	c.note()
	if c.shim.err != nil {
		return total, c.shim.err
	}
	if total == 0 && len(p) > 0 {
		return 0, poller.ErrAgain
	}
	return total, nil
}

// CloseWrite says close_notify and shuts our half, once what is queued has gone.
func (c *Conn) CloseWrite() error {
	if c.closed {
		return net.ErrClosed
	}
	if err := c.tls.CloseWrite(); err != nil {
		return err
	}
	c.finish = true
	if !c.shim.flush() {
		c.note()
		return nil
	}
	return c.raw.CloseWrite()
}

// Close is described at poller.Conn; close_notify is not sent.
func (c *Conn) Close() error { return c.end(c.raw.Close) }

// Reset is described at poller.Conn.
func (c *Conn) Reset() error { return c.end(c.raw.Reset) }

func (c *Conn) end(close func() error) error {
	if c.closed {
		return nil
	}
	c.closed = true
	c.poller.forget(c)
	return close()
}

// RemoteAddr is described at poller.Conn.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.raw.RemoteAddr() }

// note tells the poller whether a queue waits for room.
func (c *Conn) note() {
	if c.poller != nil {
		c.poller.note(c)
	}
}

// pending tells the poller that reading again may give something.
func (c *Conn) pending() {
	if c.poller != nil {
		c.poller.pending[c.token] = c
	}
}
