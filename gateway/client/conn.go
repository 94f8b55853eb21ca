package client

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/gateway/client/machine"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// closeTime bounds saying goodbye: the close frame out, the server's in.
const closeTime = time.Second

// conn carries one link of the machine. Its reader owns the socket from dial to
// close; its writer sends what is queued.
type conn struct {
	// immutable
	client *Client
	n      int
	cancel context.CancelFunc // ends the dial

	// under client.mu
	socket  net.Conn // from the handshake on
	queue   [][]byte // frames; bounded by calls and subscriptions
	control [][]byte // pongs; one, the newest

	closeCode wire.CloseCode // written before stop is closed
	stop      chan struct{}  // closed by drop
	wake      chan struct{}  // one slot: something is queued
	gone      chan struct{}  // closed by the reader: the socket is closed
	paused    atomic.Bool    // the reader waits for the application
}

// open starts a conn. client.mu is held.
func (c *Client) open(a machine.OpenLink) {
	ctx, cancel := context.WithTimeout(c.ctx, a.Time)
	k := &conn{
		client: c, n: a.Link, cancel: cancel,
		stop: make(chan struct{}), wake: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	c.conns[a.Link] = k
	// Owns the socket; ended by drop, the peer, or its limits; Close waits for it.
	c.running.Go(func() { k.run(ctx, a.URL, a.Ticket) })
}

// drop ends it, politely if it can. client.mu is held; nothing is reported after.
func (k *conn) drop(code wire.CloseCode) {
	k.closeCode = code
	k.cancel()
	close(k.stop)
	if k.socket != nil {
		// Setting deadlines does not block. A write that is stuck ends by it.
		k.socket.SetDeadline(time.Now().Add(closeTime))
	}
}

// write queues a frame. client.mu is held.
func (k *conn) write(text []byte) {
	k.queue = append(k.queue, text)
	k.wakeWriter()
}

func (k *conn) wakeWriter() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *conn) run(ctx context.Context, url, ticket string) {
	socket, br, refused := k.client.settings.handshake(ctx, url, ticket)
	k.cancel()
	if refused != nil {
		k.client.step(func(m *machine.Machine, now time.Time) {
			k.forget()
			m.Refused(now, k.n, *refused)
		})
		return
	}
	k.client.mu.Lock()
	k.socket = socket
	k.client.mu.Unlock()
	written := make(chan struct{})
	// Owns writing; ended by drop or by the reader (gone); the reader waits for it.
	go func() {
		defer close(written)
		k.writeLoop(socket)
	}()
	k.client.step(func(m *machine.Machine, now time.Time) { m.Opened(now, k.n) })
	code, err := k.readLoop(socket, br)
	k.client.settings.log.Debug("connection ended", "link", k.n, "code", code, "err", err)
	socket.Close()
	close(k.gone)
	<-written
	k.client.step(func(m *machine.Machine, now time.Time) {
		k.forget()
		m.Lost(now, k.n, code, err)
	})
}

// forget: nothing can be sent any more. client.mu is held.
func (k *conn) forget() {
	if k.client.conns[k.n] == k {
		delete(k.client.conns, k.n)
	}
}

// readLoop reads until the end. 0: there was no close frame.
func (k *conn) readLoop(socket net.Conn, br *bufio.Reader) (wire.CloseCode, error) {
	r := reader{br: br}
	for {
		if room := k.client.mailbox.full(); room != nil && !k.dropped() {
			k.paused.Store(true)
			select {
			case <-room:
			case <-k.stop:
			}
			k.paused.Store(false)
		}
		op, payload, err := r.next()
		if err == nil && op == ws.OpText && !k.dropped() {
			err = k.frames(payload)
		}
		var broken *protocolError
		switch {
		case errors.As(err, &broken):
			k.answerClose(socket, broken.code)
			return broken.code, err
		case err != nil:
			return 0, err
		case op == ws.OpPing:
			k.pong(payload)
		case op == ws.OpClose:
			return k.closed(socket, payload)
		}
		if op != ws.OpText {
			k.client.step(func(m *machine.Machine, _ time.Time) { m.Alive(k.n) })
		}
	}
}

// closed reads the server's close frame and answers it (RFC 6455, 5.5.1).
func (k *conn) closed(socket net.Conn, payload []byte) (wire.CloseCode, error) {
	if len(payload) < 2 {
		k.answerClose(socket, wire.CloseNormal)
		return 0, nil
	}
	code, reason := ws.ParseCloseFrameData(payload)
	k.answerClose(socket, wire.CloseCode(code))
	return wire.CloseCode(code), &CloseError{Code: wire.CloseCode(code), Reason: reason}
}

// answerClose says the last word, unless drop has said it.
func (k *conn) answerClose(socket net.Conn, code wire.CloseCode) {
	if k.dropped() {
		return
	}
	socket.SetWriteDeadline(time.Now().Add(closeTime))
	_ = ws.WriteFrame(socket, ws.MaskFrame(ws.NewCloseFrame(ws.NewCloseFrameBody(ws.StatusCode(code), ""))))
}

func (k *conn) dropped() bool {
	select {
	case <-k.stop:
		return true
	default:
		return false
	}
}

// frames gives the frames of a message to the machine.
func (k *conn) frames(payload []byte) error {
	var list []*clientv1.ServerFrame
	for line := range lines(payload) {
		f, err := wire.DecodeServer(line)
		if err != nil {
			return &protocolError{wire.CloseInvalidData, err.Error()}
		}
		list = append(list, f)
	}
	k.client.step(func(m *machine.Machine, now time.Time) {
		for _, f := range list {
			m.Frame(now, k.n, f)
		}
	})
	return nil
}

// pong answers a ping of the WebSocket layer (RFC 6455, 5.5.2: the newest is enough).
func (k *conn) pong(payload []byte) {
	frame := ws.MustCompileFrame(ws.MaskFrame(ws.NewPongFrame(append([]byte(nil), payload...))))
	k.client.mu.Lock()
	k.control = [][]byte{frame}
	k.client.mu.Unlock()
	k.wakeWriter()
}

// writeLoop sends what is queued, all that there is in one write.
func (k *conn) writeLoop(socket net.Conn) {
	for {
		select {
		case <-k.gone:
			return
		case <-k.stop:
			socket.SetDeadline(time.Now().Add(closeTime))
			body := ws.NewCloseFrameBody(ws.StatusCode(k.closeCode), "")
			out := append(k.queued(), ws.MustCompileFrame(ws.MaskFrame(ws.NewCloseFrame(body)))...)
			if _, err := socket.Write(out); err != nil {
				socket.Close()
			}
			<-k.gone
			return
		case <-k.wake:
			if _, err := socket.Write(k.queued()); err != nil {
				// The reader reports it. What a server said before it stopped reading (`busy`,
				// written with the 101) is still to be read.
				socket.SetReadDeadline(time.Now().Add(closeTime))
				<-k.gone
				return
			}
		}
	}
}

// queued takes all frames that wait, each a message of its own: the limit of a
// client's frame is then also that of its message.
func (k *conn) queued() (out []byte) {
	k.client.mu.Lock()
	queue, control := k.queue, k.control
	k.queue, k.control = nil, nil
	k.client.mu.Unlock()
	for _, c := range control {
		out = append(out, c...)
	}
	for _, text := range queue {
		out = append(out, ws.MustCompileFrame(ws.MaskFrameInPlace(ws.NewTextFrame(text)))...)
	}
	return out
}
