package loadgen

import (
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/gateway/auth"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Every client sends the same key (RFC 6455 4.1): only the answer to it matters.
const (
	handshakeKey    = "c3BpbGx3YXkgbG9hZGdlbg=="
	tokenLife       = time.Hour
	ipBindNoPort    = 24 // IP_BIND_ADDRESS_NO_PORT
	maxEventsPolled = 1024
	maxAttemptTime  = 60 * time.Second
	drainPoll       = 50 * time.Millisecond
)

// begin starts an attempt of a client whose turn has come: its only one, or its move.
// Errors end it like any other.
func (l *loop) begin(c *client) {
	if c.conns[0].opening() || c.conns[1].opening() || c.cur != nil && !c.moving.open {
		return
	}
	k := &c.conns[0]
	if k.fd >= 0 {
		k = &c.conns[1]
	}
	if k.fd >= 0 { // the left connection of the move before is not closed yet
		l.timers.set(&c.timer, l.now+int64(drainPoll))
		return
	}
	*k = conn{client: c, timer: k.timer, fd: -1, slot: k.slot, subs: k.subs[:0]}
	k.state, k.began, k.first = dialing, l.now, c.turns == 0
	k.move = c.moving.open && c.cur != nil
	c.turns++
	c.attempt++
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
	timeout := l.cfg.AttemptTimeout
	if l.obeys {
		timeout = max(timeout, min(maxAttemptTime, timeout<<min(c.failures, 6)))
	}
	l.timers.set(&k.timer, l.now+int64(timeout))
	l.aim(k)
	l.dial(k)
}

// aim fixes where an attempt goes and what it offers: as the refusal before it said,
// else as the hint, else an address of the name and the client's own ticket.
func (l *loop) aim(k *conn) {
	c := k.client
	if !l.obeys {
		return
	}
	url := c.next.url
	switch {
	case c.next.pass != "":
		k.offer, k.pass = c.next.pass, true
	case k.move && c.moving.ticket != "":
		k.offer = c.moving.ticket
	default:
		k.offer = c.ticket
	}
	if url == "" && k.move {
		url = c.moving.url
	}
	if t, err := parseTarget(url); err == nil {
		k.target, k.aimed = t, true
	}
	c.next = told{}
}

// dial opens the socket. A name with several addresses is tried as every dialler does:
// the next one at once where nobody listens (next is called again then). The address of
// the attempt or connection before is the last to be tried.
func (l *loop) dial(k *conn) {
	c, n := k.client, len(l.targets)
	k.address = c.number
	if c.turns > 1 && n > 1 {
		k.address = c.address + l.rand.IntN(n-1) // that is the one behind the last
	}
	if k.left = len(l.targets); k.aimed {
		k.left = 1
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
		switch err := l.open(k); err {
		case nil:
			return
		case unix.ECONNREFUSED:
		case unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			l.end(k, CauseLocal)
			return
		default:
			k.left = 0
		}
	}
	l.end(k, CauseReset)
}

// open makes the socket and begins to connect it.
func (l *loop) open(k *conn) error {
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
			Fd:     int32(k.client.number - l.cfg.First), Pad: k.slot,
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
		if k.offer != "" {
			b = append(b, ", "+wire.TicketPrefix...)
			b = append(b, k.offer...)
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

// greet sends the connect frame: who it is, and all subscriptions with their positions.
func (l *loop) greet(k *conn) {
	c := k.client
	if c.subs == nil {
		c.subs = make([]position, len(l.cfg.Subscriptions))
		for i, s := range l.cfg.Subscriptions {
			c.subs[i].channel = l.channel(s.Channel(c.number))
		}
	}
	m := &clientv1.Connect{Client: "loadgen", Subscriptions: make([]*clientv1.SubscriptionRequest, len(c.subs))}
	k.subs = slices.Grow(k.subs[:0], len(c.subs))[:len(c.subs)]
	for i := range c.subs {
		s := &c.subs[i]
		k.subs[i] = stream{}
		ask := &clientv1.SubscriptionRequest{Channel: s.channel.name}
		if s.known && !l.cfg.Forget {
			ask.Epoch, ask.Offset = s.epoch, new(s.offset)
			k.subs[i] = stream{epoch: s.epoch, start: s.offset, end: s.offset, seq: s.seq}
		}
		m.Subscriptions[i] = ask
	}
	if l.obeys {
		m.Attempt = new(c.attempt)
		if m.Ticket = c.ticket; k.move && c.moving.ticket != "" {
			m.Ticket = c.moving.ticket
		}
	}
	if k.retry || m.Ticket == "" {
		m.Ticket, m.Token = "", l.token(c)
	}
	k.offers = m.Ticket != ""
	k.state = greeting
	l.send(k, &clientv1.ClientFrame{Id: 1, Frame: &clientv1.ClientFrame_Connect{Connect: m}})
}

// token asks the client's provider: clients that know tickets do so once, the others
// for each connection.
func (l *loop) token(c *client) string {
	if len(l.cfg.Secret) == 0 {
		return ""
	}
	l.counts.TokenAsks++
	token, err := auth.Mint(l.cfg.Secret, "c"+strconv.Itoa(c.number), l.rights(c), nil, tokenLife, time.Now())
	if err != nil {
		return "" // refused by the server, and counted there
	}
	return token
}

func (l *loop) rights(c *client) map[string][]string {
	rights := make(map[string][]string, len(c.subs))
	for i := range c.subs {
		rights[c.subs[i].channel.name] = []string{"subscribe", "history"}
	}
	return rights
}

// channel interns a name.
func (l *loop) channel(name string) *channel {
	ch := l.channels[name]
	if ch == nil {
		// What the server writes before the offset; a name that JSON escapes is found
		// on the slow path.
		ch = &channel{name: name, head: []byte(`"` + name + `","offset":`)}
		l.channels[name] = ch
	}
	return ch
}
