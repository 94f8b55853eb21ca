package loadgen

import (
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
)

// begin starts an attempt. Errors end it like any other.
func (l *loop) begin(c *conn) {
	t := &l.targets[(c.number+c.attempts)%len(l.targets)]
	c.attempts++
	c.state, c.began, c.upSince, c.pinged = dialing, l.now, 0, 0
	c.refused, c.code, c.wait = "", 0, 0
	l.inFlight++
	l.counts.Attempts++
	l.timers.set(c, l.now+int64(l.cfg.AttemptTimeout))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		l.end(c, CauseLocal)
		return
	}
	c.fd = fd
	if len(l.sources) > 0 {
		// The port is chosen by connect(2), which knows both ends: bind(2) alone would
		// need a port free for all targets.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, ipBindNoPort, 1)
		source := l.sources[(c.number-l.cfg.First)/SourceConns%len(l.sources)]
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: source}); err != nil {
			l.end(c, CauseLocal)
			return
		}
	}
	switch err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(t.addr.Port()), Addr: t.addr.Addr().As4()}); err {
	case nil, unix.EINPROGRESS:
	case unix.EADDRNOTAVAIL, unix.EADDRINUSE:
		l.end(c, CauseLocal)
		return
	default:
		l.end(c, CauseReset)
		return
	}
	// Edge-triggered for both directions: no further epoll_ctl in the life of a socket.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | edgeTriggered, Fd: int32(c.number - l.cfg.First)}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		l.end(c, CauseLocal)
	}
}

const edgeTriggered = 1 << 31 // EPOLLET, which x/sys has as a negative number

// request sends the opening handshake.
func (l *loop) request(c *conn) {
	t := &l.targets[(c.number+c.attempts-1)%len(l.targets)]
	b := l.scratch[:0]
	b = append(b, "GET "...)
	b = append(b, t.path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, t.host...)
	b = append(b, "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+
		handshakeKey+"\r\nSec-WebSocket-Protocol: "+wire.ProtocolJSON+"\r\n\r\n"...)
	l.scratch = b
	c.state = upgrading
	l.write(c, b)
}

// greet sends the connect frame: token, and all subscriptions with their positions.
func (l *loop) greet(c *conn) {
	if c.subs == nil {
		c.subs = make([]subscription, len(l.cfg.Subscriptions))
		for i, s := range l.cfg.Subscriptions {
			c.subs[i].channel = l.channel(s.Channel(c.number))
		}
	}
	m := &clientv1.Connect{Client: "loadgen", Subscriptions: make([]*clientv1.SubscriptionRequest, len(c.subs))}
	for i := range c.subs {
		s := &c.subs[i]
		s.live = false
		ask := &clientv1.SubscriptionRequest{Channel: s.channel.name}
		if s.known = s.known && !l.cfg.Forget; s.known {
			offset := s.offset
			ask.Epoch, ask.Offset = s.epoch, &offset
		} else {
			s.seq = 0
		}
		m.Subscriptions[i] = ask
	}
	if l.cfg.Secret != nil {
		token, err := auth.Mint(l.cfg.Secret, "c"+strconv.Itoa(c.number), l.rights(c), nil, tokenLife, time.Now())
		if err != nil {
			l.end(c, CauseLocal)
			return
		}
		m.Token = token
	}
	c.state = greeting
	l.send(c, &clientv1.ClientFrame{Id: 1, Frame: &clientv1.ClientFrame_Connect{Connect: m}})
}

func (l *loop) rights(c *conn) map[string][]string {
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
