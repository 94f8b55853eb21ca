package relay

import (
	"golang.org/x/sys/unix"
)

// acceptsATurn bounds how many come in between two looks at those who are there.
const acceptsATurn = 64

// accept takes some who wait, and begins to connect each to a backend. Who has given up
// meanwhile is let go: a relay that is behind would else work for none but those.
func (r *relay) accept() {
	for range acceptsATurn {
		fd, _, err := unix.Accept4(r.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			r.pause(true)
			return
		default:
			return // nobody waits any more
		}
		if left(fd) {
			_ = unix.Close(fd)
			continue
		}
		p := &pair{left: len(r.backends)}
		p.client, p.backend = side{pair: p, fd: fd, ready: true}, side{pair: p, fd: -1}
		r.add(&p.client)
		r.connect(p)
	}
}

// left tells whether the other end has closed, whatever it wrote before.
func left(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(polled, 0)
	return err == nil && n > 0
}

// pause stops accepting until a descriptor is given back, or goes on.
func (r *relay) pause(on bool) {
	r.paused = on
	event := unix.EpollEvent{Fd: int32(r.listener)}
	if !on {
		event.Events = unix.EPOLLIN
	}
	_ = unix.EpollCtl(r.epfd, unix.EPOLL_CTL_MOD, r.listener, &event)
}

func (r *relay) add(s *side) {
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	r.sides[s.fd] = s
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | edge, Fd: int32(s.fd)}
	if unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, s.fd, &event) != nil {
		r.end(s.pair)
	}
}

// connect tries the next backend that is well; the last ones may be any.
func (r *relay) connect(p *pair) {
	for p.left > 0 {
		p.left--
		i := r.turn % len(r.backends)
		r.turn++
		if !r.health.well(i) && p.left > 0 {
			continue
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			break
		}
		if err := unix.Connect(fd, &r.backends[i]); err != nil && err != unix.EINPROGRESS {
			_ = unix.Close(fd)
			continue
		}
		p.backend = side{pair: p, fd: fd}
		r.add(&p.backend)
		return
	}
	r.end(p)
}

// event is what epoll says of one half.
func (r *relay) event(s *side, events uint32) {
	p := s.pair
	gone := events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	switch {
	case p.cut:
		if events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			r.drop(s)
		}
		return
	case !s.ready && gone: // nobody listens there
		r.drop(s)
		r.connect(p)
		return
	case !s.ready && events&unix.EPOLLOUT == 0:
		return
	}
	s.ready = true
	if len(s.out) > 0 && events&unix.EPOLLOUT != 0 {
		r.write(s, nil)
	}
	// What this half brings, and what the other one could not give it.
	if s.fd >= 0 {
		r.forward(s)
	}
	if o := p.other(s); s.fd >= 0 && o.fd >= 0 {
		r.forward(o)
	}
}

// forward reads a half until it has no more, or the other one takes no more.
func (r *relay) forward(from *side) {
	to := from.pair.other(from)
	if !from.ready || !to.ready {
		return
	}
	for from.fd >= 0 && to.fd >= 0 && len(to.out) == 0 && !from.eof {
		n, err := unix.Read(from.fd, r.buf)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return
		case err != nil:
			r.end(from.pair)
			return
		case n == 0:
			from.eof = true
			r.write(to, nil)
			return
		}
		r.write(to, r.buf[:n])
	}
}

// write gives bytes to a half, keeps what it does not take, and passes on the end of
// the other one once all is written.
func (r *relay) write(s *side, b []byte) {
	if len(s.out) > 0 {
		b = append(s.out, b...)
	}
	for len(b) > 0 {
		n, err := unix.Write(s.fd, b)
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			r.end(s.pair)
			return
		}
		b = b[n:]
	}
	s.out = append([]byte(nil), b...)
	o := s.pair.other(s)
	if len(s.out) > 0 || !o.eof || s.shut {
		return
	}
	s.shut = true
	if s.eof {
		r.end(s.pair)
		return
	}
	_ = unix.Shutdown(s.fd, unix.SHUT_WR)
}

// end closes both halves.
func (r *relay) end(p *pair) {
	r.drop(&p.client)
	r.drop(&p.backend)
}

// drop closes one half.
func (r *relay) drop(s *side) {
	if s.fd < 0 {
		return
	}
	delete(r.sides, s.fd)
	_ = unix.Close(s.fd)
	s.fd, s.out = -1, nil
	if r.paused {
		r.pause(false)
	}
}
