package poller

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// memClient is the client end of a memPipe: a net.Conn.
type memClient struct {
	pipe *memPipe

	readMu, writeMu sync.Mutex // one reader and one writer at a time, as TCP's

	readBy, writeBy memDeadline

	// guarded by the pipe's mu
	closed bool
	linger int // 0: Close resets
}

var _ net.Conn = (*memClient)(nil)

func newMemClient(p *memPipe) *memClient {
	return &memClient{pipe: p, linger: -1}
}

// wait blocks until something changed behind the look that gave notify.
func (c *memClient) wait(notify <-chan struct{}, by *memDeadline) error {
	passed, changed := by.get()
	select {
	case <-passed:
		return os.ErrDeadlineExceeded
	default:
	}
	select {
	case <-notify:
	case <-changed:
	case <-passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (c *memClient) Read(b []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for {
		n, notify, err := c.tryRead(b)
		if notify == nil {
			return n, c.wrap("read", err)
		}
		if err := c.wait(notify, &c.readBy); err != nil {
			return 0, c.wrap("read", err)
		}
	}
}

// tryRead returns a chan to wait for if there is nothing to say yet.
func (c *memClient) tryRead(b []byte) (int, <-chan struct{}, error) {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.closed:
		return 0, nil, net.ErrClosed
	case len(b) == 0:
		return 0, nil, nil
	case p.reset:
		return 0, nil, ErrReset
	case len(p.down.data) > 0:
		n := p.down.read(b)
		p.conn.watch.tell() // there is room again
		return n, nil, nil
	case p.down.fin:
		return 0, nil, io.EOF
	}
	return 0, p.notify, nil
}

func (c *memClient) Write(b []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	sent := 0
	for {
		n, notify, err := c.tryWrite(b[sent:])
		sent += n
		if notify == nil {
			return sent, c.wrap("write", err)
		}
		if err := c.wait(notify, &c.writeBy); err != nil {
			return sent, c.wrap("write", err)
		}
	}
}

func (c *memClient) tryWrite(b []byte) (int, <-chan struct{}, error) {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.closed:
		return 0, nil, net.ErrClosed
	case len(b) == 0:
		return 0, nil, nil
	case p.reset || p.up.fin:
		return 0, nil, ErrReset
	case p.up.dead:
		p.resetLocked()
		return 0, nil, ErrReset
	}
	n := p.up.write(b)
	if n > 0 {
		p.conn.watch.tell()
	}
	if n == len(b) {
		return n, nil, nil
	}
	return n, p.notify, nil
}

// CloseWrite sends FIN.
func (c *memClient) CloseWrite() error {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.closed {
		return c.wrap("close", net.ErrClosed)
	}
	p.up.fin = true
	p.conn.watch.tell()
	p.tellClient()
	return nil
}

// SetLinger(0) makes Close reset, as on a net.TCPConn; other values do nothing.
func (c *memClient) SetLinger(sec int) error {
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	c.linger = sec
	return nil
}

// Close unblocks every call under way.
func (c *memClient) Close() error {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.closed {
		return c.wrap("close", net.ErrClosed)
	}
	c.closed = true
	if c.linger == 0 || len(p.down.data) > 0 {
		p.resetLocked()
		return nil
	}
	p.up.fin, p.down.dead = true, true
	p.conn.watch.tell()
	p.tellClient()
	return nil
}

func (c *memClient) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "mem", Addr: c.RemoteAddr(), Err: err}
}

func (c *memClient) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.pipe.client) }
func (c *memClient) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.pipe.server) }

func (c *memClient) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.writeBy.set(t)
	return nil
}

func (c *memClient) SetReadDeadline(t time.Time) error  { c.readBy.set(t); return nil }
func (c *memClient) SetWriteDeadline(t time.Time) error { c.writeBy.set(t); return nil }

// memDeadline is a moment that can be moved while somebody waits for it. The
// timer's callback closes a chan and is the only code that runs by itself.
type memDeadline struct {
	mu      sync.Mutex // guards all below
	timer   *time.Timer
	passed  chan struct{} // closed when the deadline has passed
	changed chan struct{} // closed when another one was set
}

func (d *memDeadline) get() (passed, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.initLocked()
	return d.passed, d.changed
}

func (d *memDeadline) initLocked() {
	if d.passed == nil {
		d.passed, d.changed = make(chan struct{}), make(chan struct{})
	}
}

func (d *memDeadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.initLocked()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	close(d.changed)
	// New chans, so that a timer that could not be stopped closes an old one.
	passed := make(chan struct{})
	d.passed, d.changed = passed, make(chan struct{})
	if t.IsZero() {
		return
	}
	if wait := time.Until(t); wait > 0 {
		d.timer = time.AfterFunc(wait, func() { close(passed) })
		return
	}
	close(passed)
}
