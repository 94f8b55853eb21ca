package poller

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Mem is the Poller over in-memory conns (MemPipe, MemListen). It waits on a Go
// chan and a timer only, so inside a testing/synctest bubble a loop in Wait is
// durably blocked and the bubble's clock goes on. For tests; it is not slow.
//
// Order of locks: a pipe's or a listener's mu, then Mem's.
type Mem struct {
	signal chan struct{} // holds 1: something is in ready, or woken is set

	mu     sync.Mutex // guards all below
	ready  []*memWatch
	woken  bool
	closed bool

	spare []*memWatch // owned by the loop: the next ready
}

var _ Poller = (*Mem)(nil)

// memSource is what a Mem can watch.
type memSource interface {
	attach(p *Mem, token uint64) error
	detach(p *Mem) error
	// look returns what is ready now and, if anything is, puts w back on the
	// ready list, which makes Wait level-triggered. A w that is no longer the
	// source's is not ready.
	look(w *memWatch) (Event, bool)
}

// memWatch is a source in a poller, from Add to Remove.
type memWatch struct {
	source memSource
	poller *Mem
	token  uint64

	queued bool // in poller.ready; guarded by the source's mu
}

// tell puts w on the ready list, once; needs the source's mu held. A nil w is of
// a source in no poller.
func (w *memWatch) tell() {
	if w != nil && !w.queued {
		w.queued = true
		w.poller.enqueue(w)
	}
}

// NewMem makes an in-memory poller; inside a synctest bubble it belongs to it.
func NewMem() *Mem { return &Mem{signal: make(chan struct{}, 1)} }

// Add is described at Poller.
func (p *Mem) Add(s Source, token uint64) error {
	m, ok := s.(memSource)
	if !ok {
		return ErrForeign
	}
	if token == WakeToken {
		return fmt.Errorf("poller: token %#x is reserved", token)
	}
	return m.attach(p, token)
}

// SetRead is described at Poller.
func (p *Mem) SetRead(c Conn, on bool) error {
	m, ok := c.(*memConn)
	if !ok {
		return ErrForeign
	}
	return m.interest(p, func() { m.noRead = !on })
}

// SetWrite is described at Poller.
func (p *Mem) SetWrite(c Conn, on bool) error {
	m, ok := c.(*memConn)
	if !ok {
		return ErrForeign
	}
	return m.interest(p, func() { m.wantWrite = on })
}

// Remove is described at Poller.
func (p *Mem) Remove(s Source) error {
	m, ok := s.(memSource)
	if !ok {
		return ErrForeign
	}
	return m.detach(p)
}

// Wait is described at Poller.
func (p *Mem) Wait(dst []Event, timeout time.Duration) ([]Event, error) {
	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	for {
		told, woken, err := p.take()
		if err != nil {
			return dst, err
		}
		before := len(dst)
		for _, w := range told {
			if ev, ok := w.source.look(w); ok {
				dst = append(dst, ev)
			}
		}
		clear(told)
		if woken || timeout == 0 || len(dst) > before {
			return dst, nil
		}
		select {
		case <-p.signal:
		case <-over:
			return dst, nil
		}
	}
}

// take empties the ready list into the loop's hands, until the next call.
func (p *Mem) take() (told []*memWatch, woken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, net.ErrClosed
	}
	select {
	case <-p.signal: // what it stands for is taken here
	default:
	}
	told, p.ready = p.ready, p.spare[:0]
	p.spare = told
	woken, p.woken = p.woken, false
	return told, woken, nil
}

func (p *Mem) enqueue(w *memWatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.ready = append(p.ready, w)
	p.poke()
}

// poke needs mu held.
func (p *Mem) poke() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// Wake is described at Poller.
func (p *Mem) Wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken = true
	p.poke()
}

// Close is described at Poller.
func (p *Mem) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.ready, p.spare = true, nil, nil
	p.poke()
	return nil
}
