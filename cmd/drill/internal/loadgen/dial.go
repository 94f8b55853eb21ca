package loadgen

import (
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/gateway/client/machine"
	"github.com/spillway-io/spillway/proto/wire"
)

// Every client sends the same key (RFC 6455 4.1): only the answer to it matters.
const (
	handshakeKey    = "c3BpbGx3YXkgbG9hZGdlbg=="
	ipBindNoPort    = 24 // IP_BIND_ADDRESS_NO_PORT
	maxEventsPolled = 1024
)

// open begins a link of a machine. A name with several addresses is tried as every dialler
// does: the next one at once where nobody listens (next is called again then). The address
// of the attempt or connection before is the last to be tried.
func (l *loop) open(c *client, a machine.OpenLink) {
	k := l.newConn(c)
	k.link, k.move, k.ticket, k.pass, k.began, k.first = a.Link, a.Move, a.Ticket, a.Pass, l.now, c.dials == 0
	c.dials++
	if k.first {
		l.ramping++
	}
	l.counts.Attempts++
	if c.first {
		l.counts.FirstAttempts++
	}
	if k.move {
		l.counts.Moves++
	}
	n := len(l.targets)
	k.left, k.address = n, c.number
	if c.dials > 1 && n > 1 {
		k.address = c.address + l.rand.IntN(n-1) // that is the one behind the last
	}
	if a.Hinted {
		var err error
		if k.target, err = parseTarget(a.URL); err != nil {
			l.failSoon(k, CauseLocal)
			return
		}
		k.aimed, k.left = true, 1
	}
	l.next(k)
}

// next tries the next address, as long as there is one.
func (l *loop) next(k *conn) {
	for k.left > 0 {
		if k.left--; !k.aimed {
			k.target = l.targets[k.address%len(l.targets)]
			k.address++
			k.client.address = k.address % len(l.targets)
		}
		switch err := l.socket(k); err {
		case nil:
			return
		case unix.ECONNREFUSED:
		case unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			l.failSoon(k, CauseLocal)
			return
		default:
			k.left = 0
		}
	}
	l.failSoon(k, CauseReset)
}

// openSocket makes the socket and begins to connect it.
func (l *loop) openSocket(k *conn) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if len(l.sources) > 0 {
		// The port is chosen by connect(2), which knows both ends: bind(2) alone would
		// need a port free for all targets.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, ipBindNoPort, 1)
		source := l.sources[(k.client.number-l.cfg.First)/SourceConns%len(l.sources)]
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: source})
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(k.target.addr.Port()), Addr: k.target.addr.Addr().As4()})
		if err == unix.EINPROGRESS {
			err = nil
		}
	}
	if err == nil {
		// Edge-triggered for both directions: no further epoll_ctl in the life of a socket.
		event := unix.EpollEvent{
			Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | edgeTriggered,
			Fd:     k.index, Pad: k.use,
		}
		err = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &event)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	k.fd = fd
	return nil
}

const edgeTriggered = 1 << 31 // EPOLLET, which x/sys has as a negative number

// request sends the opening handshake.
func (l *loop) request(k *conn) {
	b := l.scratch[:0]
	b = append(b, "GET "...)
	b = append(b, k.target.path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, k.target.host...)
	b = append(b, "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+
		handshakeKey+"\r\n"...)
	if !l.cfg.Plain {
		b = append(b, "Sec-WebSocket-Protocol: "+wire.ProtocolJSON...)
		if k.ticket != "" {
			b = append(b, ", "+wire.TicketPrefix...)
			b = append(b, k.ticket...)
			l.counts.Offered++
			if k.pass {
				l.counts.Passes++
			}
		}
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	l.scratch = b
	k.state = upgrading
	l.write(k, b)
}
