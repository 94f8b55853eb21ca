package tlsconn

import (
	"time"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

// Poller is a poller.Poller for TLS conns over another; plain conns and listeners go
// through it untouched.
type Poller struct {
	poller.Poller

	// owned by the loop
	pending map[uint64]*Conn // may have bytes that the socket does not show
	blocked map[uint64]*Conn // have records that the socket did not take
}

var _ poller.Poller = (*Poller)(nil)

// NewPoller makes one over p, which is its own from now on.
func NewPoller(p poller.Poller) *Poller {
	return &Poller{Poller: p, pending: make(map[uint64]*Conn), blocked: make(map[uint64]*Conn)}
}

// Add is described at poller.Poller.
func (p *Poller) Add(s poller.Source, token uint64) error {
	c, ok := s.(*Conn)
	if !ok {
		return p.Poller.Add(s, token)
	}
	if c.poller != nil {
		return poller.ErrForeign
	}
	if err := p.Poller.Add(c.raw, token); err != nil {
		return err
	}
	c.poller, c.token, c.wantRead, c.wantSend = p, token, true, false
	p.pending[token] = c // what came with the handshake, or was read before a move
	p.note(c)
	return nil
}

// SetRead is described at poller.Poller.
func (p *Poller) SetRead(s poller.Conn, on bool) error {
	c, ok := s.(*Conn)
	if !ok {
		return p.Poller.SetRead(s, on)
	}
	if c.poller != p {
		return poller.ErrForeign
	}
	c.wantRead = on
	if on {
		p.pending[c.token] = c
	}
	return p.Poller.SetRead(c.raw, on)
}

// SetWrite is described at poller.Poller.
func (p *Poller) SetWrite(s poller.Conn, on bool) error {
	c, ok := s.(*Conn)
	if !ok {
		return p.Poller.SetWrite(s, on)
	}
	if c.poller != p {
		return poller.ErrForeign
	}
	c.wantSend = on
	return p.Poller.SetWrite(c.raw, on || len(c.shim.out) > 0)
}

// Remove is described at poller.Poller.
func (p *Poller) Remove(s poller.Source) error {
	c, ok := s.(*Conn)
	if !ok {
		return p.Poller.Remove(s)
	}
	if c.poller != p {
		return poller.ErrForeign
	}
	p.forget(c)
	return p.Poller.Remove(c.raw)
}

// forget may be called on a nil Poller: a conn in none.
func (p *Poller) forget(c *Conn) {
	if p == nil {
		return
	}
	delete(p.pending, c.token)
	delete(p.blocked, c.token)
	c.poller = nil
}

// note keeps the poller's interest in room for a queue.
func (p *Poller) note(c *Conn) {
	_, had := p.blocked[c.token]
	has := len(c.shim.out) > 0
	if had == has {
		return
	}
	if has {
		p.blocked[c.token] = c
	} else {
		delete(p.blocked, c.token)
	}
	_ = p.Poller.SetWrite(c.raw, has || c.wantSend) // fails only for a conn that is gone
}

// Wait is described at poller.Poller.
func (p *Poller) Wait(dst []poller.Event, timeout time.Duration) ([]poller.Event, error) {
	for token, c := range p.pending {
		if !c.wantRead {
			delete(p.pending, token) // SetRead brings it back
		}
	}
	if len(p.pending) > 0 {
		timeout = 0
	}
	from := len(dst)
	dst, err := p.Poller.Wait(dst, timeout)
	if err != nil {
		return dst, err
	}
	kept := dst[:from]
	for _, ev := range dst[from:] {
		if c := p.blocked[ev.Token]; c != nil && ev.Writable {
			ev.Writable = p.room(c)
		}
		if c := p.pending[ev.Token]; c != nil {
			ev.Readable = true
			delete(p.pending, ev.Token)
		}
		if ev.Readable || ev.Writable || ev.Hangup {
			kept = append(kept, ev)
		}
	}
	for token := range p.pending {
		delete(p.pending, token)
		kept = append(kept, poller.Event{Token: token, Readable: true})
	}
	return kept, nil
}

// room flushes a queue; true: its owner waits for room too, or should hear that the
// socket is gone.
func (p *Poller) room(c *Conn) bool {
	if !c.shim.flush() {
		return false
	}
	if c.finish && c.shim.err == nil {
		c.shim.err = c.raw.CloseWrite()
	}
	p.note(c)
	return c.wantSend
}
