package poller

import (
	"io"
	"net"
	"net/netip"
	"sync"
)

// memPipe joins a server end (memConn, polled) and a client end (memClient,
// blocking). It follows TCP where a server could notice: FIN is read behind the
// data, a close with unread input resets, and a reset takes what was under way.
type memPipe struct {
	client netip.AddrPort
	server netip.AddrPort

	mu     sync.Mutex // guards all below and the ends' own state
	up     memFlow    // client to server
	down   memFlow    // server to client
	reset  bool       // both ends: ErrReset
	conn   memConn
	notify chan struct{} // closed and replaced when the client's prospects change
}

// memFlow is one direction; len(data) <= limit.
type memFlow struct {
	data  []byte
	limit int
	fin   bool // no more will be written
	dead  bool // the reader has closed
}

func (f *memFlow) write(p []byte) int {
	n := min(len(p), f.limit-len(f.data))
	f.data = append(f.data, p[:n]...)
	return n
}

func (f *memFlow) read(p []byte) int {
	n := copy(p, f.data)
	f.data = f.data[:copy(f.data, f.data[n:])]
	return n
}

// MemPipe returns the two ends of a stream. Each direction holds at most limit
// bytes: a socket buffer. The client end blocks, has deadlines, is safe for
// concurrent use as package net's conns are, and can reset (SetLinger(0), then
// Close).
func MemPipe(limit int) (server Conn, client net.Conn) {
	p := newMemPipe(limit, memAddr(1), memAddr(80))
	return &p.conn, newMemClient(p)
}

// memAddr is of a documentation network (RFC 5737), so that it is never dialled.
func memAddr(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), port)
}

func newMemPipe(limit int, client, server netip.AddrPort) *memPipe {
	p := &memPipe{client: client, server: server, notify: make(chan struct{})}
	p.up.limit, p.down.limit = limit, limit
	p.conn.pipe = p
	return p
}

// tellClient wakes whoever blocks in the client; needs mu held.
func (p *memPipe) tellClient() {
	close(p.notify)
	p.notify = make(chan struct{})
}

// resetLocked ends both directions; nothing under way arrives.
func (p *memPipe) resetLocked() {
	p.reset = true
	p.up.data, p.down.data = nil, nil
	p.conn.watch.tell()
	p.tellClient()
}

// memConn is the server end; its fields are guarded by the pipe's mu.
type memConn struct {
	pipe      *memPipe
	watch     *memWatch // nil: in no poller
	noRead    bool
	wantWrite bool
	closed    bool
}

var (
	_ Conn      = (*memConn)(nil)
	_ memSource = (*memConn)(nil)
)

func (c *memConn) Read(b []byte) (int, error) {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case len(b) == 0:
		return 0, nil
	case p.reset:
		return 0, ErrReset
	case len(p.up.data) > 0:
		n := p.up.read(b)
		p.tellClient()
		return n, nil
	case p.up.fin:
		return 0, io.EOF
	}
	return 0, ErrAgain
}

func (c *memConn) Write(b []byte) (int, error) {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case len(b) == 0:
		return 0, nil
	case p.reset || p.down.fin:
		return 0, ErrReset
	case p.down.dead:
		p.resetLocked()
		return 0, ErrReset
	}
	n := p.down.write(b)
	if n == 0 {
		return 0, ErrAgain
	}
	p.tellClient()
	return n, nil
}

func (c *memConn) CloseWrite() error {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.closed:
		return net.ErrClosed
	case p.reset:
		return ErrReset
	}
	p.down.fin = true
	p.tellClient()
	return nil
}

func (c *memConn) Close() error { return c.close(false) }
func (c *memConn) Reset() error { return c.close(true) }

func (c *memConn) close(reset bool) error {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.watch = nil
	if reset || len(p.up.data) > 0 {
		p.resetLocked()
		return nil
	}
	p.down.fin, p.up.dead = true, true
	p.tellClient()
	return nil
}

func (c *memConn) RemoteAddr() netip.AddrPort {
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	if c.closed || c.pipe.reset {
		return netip.AddrPort{}
	}
	return c.pipe.client
}

func (c *memConn) attach(m *Mem, token uint64) error {
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if c.watch != nil {
		return ErrForeign
	}
	c.watch = &memWatch{source: c, poller: m, token: token}
	c.noRead, c.wantWrite = false, false
	c.watch.tell() // look will find out
	return nil
}

func (c *memConn) detach(m *Mem) error {
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	if err := c.inLocked(m); err != nil {
		return err
	}
	c.watch = nil
	return nil
}

func (c *memConn) inLocked(m *Mem) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.watch == nil || c.watch.poller != m:
		return ErrForeign
	}
	return nil
}

func (c *memConn) interest(m *Mem, change func()) error {
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	if err := c.inLocked(m); err != nil {
		return err
	}
	change()
	c.watch.tell()
	return nil
}

func (c *memConn) look(w *memWatch) (Event, bool) {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.watch != w {
		return Event{}, false
	}
	w.queued = false
	ev := Event{Token: w.token, Hangup: p.reset || p.up.fin}
	ev.Readable = ev.Hangup || !c.noRead && len(p.up.data) > 0
	ev.Writable = c.wantWrite && (p.reset || p.down.fin || p.down.dead || len(p.down.data) < p.down.limit)
	if !ev.Readable && !ev.Writable {
		return Event{}, false
	}
	w.tell()
	return ev, true
}
