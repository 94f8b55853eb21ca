package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/spillway-io/spillway/gateway/internal/poller"
	"github.com/spillway-io/spillway/gateway/internal/wsframe"
)

// door accepts sockets and keeps them until their request is whole, the pool has
// decided, or they have heard why not. One goroutine with a poller of its own: a
// thousand half-open requests cost it a thousand small buffers and no thread.
//
//	accept -> visitor (reading) -> pool -> loop
//	                                 \--> visitor (leaving): refused, our half shut
type door struct {
	// immutable after newDoor
	edge     *Edge
	listener poller.Listener
	reserve  *poller.Reserve // nil where descriptors do not matter

	inbox inbox[*visitor] // the pool gives back whom it refused

	// owned by the door
	poller   poller.Poller
	visitors map[uint64]*visitor
	token    uint64
	buf      []byte
}

// visitor is a socket that is no conn yet, or will not be one.
type visitor struct {
	sock     poller.Conn
	head     []byte // of the request, so far
	seen     int    // of head, looked at
	deadline time.Time
	leaving  bool
}

const (
	listenerToken = 0
	acceptBurst   = 64              // accepts in one turn
	lingerTime    = 1 * time.Second // for a refused socket to read why and go
	doorSweep     = 250 * time.Millisecond
)

func newDoor(e *Edge, ln poller.Listener, p poller.Poller, reserve *poller.Reserve) *door {
	d := &door{
		edge: e, listener: ln, reserve: reserve, poller: p,
		visitors: make(map[uint64]*visitor), buf: make([]byte, wsframe.MaxHandshakeBytes),
	}
	d.inbox.wake = p.Wake
	return d
}

// run turns until ctx ends.
func (d *door) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.poller.Wake)
	defer stop()
	defer d.shut()
	if err := d.poller.Add(d.listener, listenerToken); err != nil {
		return err
	}
	var events []poller.Event
	swept := time.Now()
	for ctx.Err() == nil {
		var err error
		if events, err = d.poller.Wait(events[:0], doorSweep); err != nil {
			return err
		}
		now := time.Now()
		for _, ev := range events {
			if ev.Token == listenerToken {
				d.accept(now)
			} else if v := d.visitors[ev.Token]; v != nil {
				d.read(ev.Token, v)
			}
		}
		for _, v := range d.inbox.take() {
			d.linger(v, now)
		}
		if now.Sub(swept) >= doorSweep {
			swept = now
			d.sweep(now)
		}
	}
	return nil
}

func (d *door) accept(now time.Time) {
	for range acceptBurst {
		sock, err := d.listener.Accept()
		switch {
		case errors.Is(err, poller.ErrAgain):
			return
		case errors.Is(err, poller.ErrDescriptors):
			d.acceptFromReserve()
			return
		case err != nil:
			d.edge.log.Warn("accept", "err", err)
			return
		}
		d.edge.metrics.accepted.Inc()
		if len(d.visitors) >= d.edge.cfg.MaxHandshakes {
			d.edge.metrics.refused(refusedDoor)
			sock.Reset()
			continue
		}
		d.keep(&visitor{sock: sock, deadline: now.Add(d.edge.cfg.HandshakeTimeout)})
	}
}

// acceptFromReserve takes one client out of the backlog and resets it, so that the
// listener does not stay ready for ever.
func (d *door) acceptFromReserve() {
	d.edge.metrics.refused(refusedDescriptors)
	if d.reserve == nil || !d.reserve.Release() {
		return
	}
	if sock, err := d.listener.Accept(); err == nil {
		sock.Reset()
	}
	_ = d.reserve.Refill() // tried again the next time
}

func (d *door) keep(v *visitor) {
	d.token++
	if err := d.poller.Add(v.sock, d.token); err != nil {
		v.sock.Close()
		return
	}
	d.visitors[d.token] = v
	d.edge.metrics.handshakes.Set(float64(len(d.visitors)))
}

// forget takes a visitor out; its socket stays open.
func (d *door) forget(token uint64, v *visitor) {
	_ = d.poller.Remove(v.sock)
	delete(d.visitors, token)
	d.edge.metrics.handshakes.Set(float64(len(d.visitors)))
}

func (d *door) read(token uint64, v *visitor) {
	n, err := v.sock.Read(d.buf)
	switch {
	case errors.Is(err, poller.ErrAgain):
		return
	case err != nil:
		d.forget(token, v)
		v.sock.Close()
		return
	case v.leaving:
		return // whatever it still says
	}
	v.head = append(v.head, d.buf[:n]...)
	end, err := wsframe.HeadEnd(v.head, v.seen)
	v.seen = len(v.head)
	if err == nil && end == 0 {
		return
	}
	d.forget(token, v)
	if err != nil {
		d.edge.metrics.refused(refusedRequest)
		d.say(v, errorResponse(err))
		return
	}
	head, rest := v.head[:end:end], v.head[end:]
	if !d.edge.checks.submit(func() { d.edge.decide(v, head, rest) }) {
		d.edge.metrics.refused(refusedBusy)
		d.say(v, d.edge.plainBusy(d.edge.retryAfter()))
	}
}

// say writes a last word to a visitor that the poller does not have, shuts our
// half, and lets it go when it has gone. From any goroutine.
func (d *door) say(v *visitor, response []byte) {
	if n, err := v.sock.Write(response); err != nil || n < len(response) {
		v.sock.Close()
		return
	}
	if err := v.sock.CloseWrite(); err != nil {
		v.sock.Close()
		return
	}
	v.head, v.leaving = nil, true
	d.inbox.post(v)
}

// linger waits a moment for a refused client to go: closing at once, with input
// unread, would turn the answer into a reset.
func (d *door) linger(v *visitor, now time.Time) {
	if len(d.visitors) >= d.edge.cfg.MaxHandshakes {
		v.sock.Close()
		return
	}
	v.deadline = now.Add(lingerTime)
	d.keep(v)
}

func (d *door) sweep(now time.Time) {
	for token, v := range d.visitors {
		if now.Before(v.deadline) {
			continue
		}
		d.forget(token, v)
		if !v.leaving {
			d.edge.metrics.refused(refusedSlow)
		}
		v.sock.Close()
	}
}

func (d *door) shut() {
	d.listener.Close()
	for _, v := range d.visitors {
		v.sock.Close()
	}
	for _, v := range d.inbox.take() {
		v.sock.Close()
	}
	d.poller.Close()
}
