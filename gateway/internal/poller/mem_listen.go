package poller

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// memBacklog is how many clients may wait to be accepted; Dial waits when it is
// full, as connect does.
const memBacklog = 1024

// MemListener is the in-memory Listener; clients come through Dial.
type MemListener struct {
	addr  netip.AddrPort
	limit int
	slots chan struct{} // one for each client in the backlog

	mu      sync.Mutex // guards all below
	backlog []*memPipe
	watches map[*Mem]*memWatch // a listener may be in several pollers
	closed  chan struct{}
	dialled uint16
}

var (
	_ Listener  = (*MemListener)(nil)
	_ memSource = (*MemListener)(nil)
)

// MemListen makes a listener whose conns hold at most limit bytes each way.
func MemListen(limit int) *MemListener {
	return &MemListener{
		addr:    memAddr(80),
		limit:   limit,
		slots:   make(chan struct{}, memBacklog),
		watches: make(map[*Mem]*memWatch),
		closed:  make(chan struct{}),
	}
}

// Dial connects a client; it blocks while the backlog is full.
func (l *MemListener) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: ctx.Err()}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: net.ErrClosed}
	}
	l.dialled++
	p := newMemPipe(l.limit, memAddr(l.dialled), l.addr)
	l.backlog = append(l.backlog, p)
	for _, w := range l.watches {
		w.tell()
	}
	return newMemClient(p), nil
}

func (l *MemListener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Accept is described at Listener.
func (l *MemListener) Accept() (Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return nil, net.ErrClosed
	}
	if len(l.backlog) == 0 {
		return nil, ErrAgain
	}
	p := l.backlog[0]
	l.backlog[0] = nil
	l.backlog = l.backlog[1:]
	<-l.slots
	return &p.conn, nil
}

// Addr is of no network; only Dial of this listener reaches it.
func (l *MemListener) Addr() netip.AddrPort { return l.addr }

// Close is described at Listener.
func (l *MemListener) Close() error {
	l.mu.Lock()
	if l.isClosed() {
		l.mu.Unlock()
		return nil
	}
	close(l.closed)
	waiting := l.backlog
	l.backlog = nil
	clear(l.watches)
	l.mu.Unlock()
	for _, p := range waiting {
		p.conn.Reset()
	}
	return nil
}

func (l *MemListener) attach(p *Mem, token uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return net.ErrClosed
	}
	if l.watches[p] != nil {
		return ErrForeign
	}
	w := &memWatch{source: l, poller: p, token: token}
	l.watches[p] = w
	w.tell()
	return nil
}

func (l *MemListener) detach(p *Mem) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watches[p] == nil {
		return ErrForeign
	}
	delete(l.watches, p)
	return nil
}

func (l *MemListener) look(w *memWatch) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watches[w.poller] != w {
		return Event{}, false
	}
	w.queued = false
	if len(l.backlog) == 0 {
		return Event{}, false
	}
	w.tell()
	return Event{Token: w.token, Readable: true}, true
}
