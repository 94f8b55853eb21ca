package poller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenConfig says how to listen. The zero value is one TCP listener.
type ListenConfig struct {
	// ReusePort lets several listeners share a port (SO_REUSEPORT); the kernel
	// spreads clients over them by address, whether or not anyone accepts.
	ReusePort bool
}

// Listen opens a TCP listener on host:port; port 0 picks one. It may look up a
// name, so it can block until ctx ends. SO_REUSEADDR is set, and the backlog is
// the system's largest (net.core.somaxconn), as package net does.
func Listen(ctx context.Context, addr string, cfg ListenConfig) (Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	// Multipath TCP, which package net asks for since Go 1.24, would put another
	// protocol under each conn.
	lc.SetMultipathTCP(false)
	if cfg.ReusePort {
		lc.Control = func(_, _ string, raw syscall.RawConn) error {
			var opt error
			err := raw.Control(func(fd uintptr) {
				opt = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			})
			return errors.Join(err, os.NewSyscallError("setsockopt", opt))
		}
	}
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err // names the address already
	}
	local := l.Addr().(*net.TCPAddr).AddrPort()
	fd, err := takeOver(l.(*net.TCPListener))
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", addr, err)
	}
	// Accepted sockets inherit it, which saves a call for each. Without it Nagle's
	// algorithm holds every second small write back until the peer acknowledges.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen %s: %w", addr, os.NewSyscallError("setsockopt", err))
	}
	return &fdListener{fd: fd, addr: netip.AddrPortFrom(local.Addr().Unmap(), local.Port())}, nil
}

type fdListener struct {
	addr netip.AddrPort

	mu sync.RWMutex // guards fd: a number given back may be another's at once
	fd int          // -1: closed
}

var _ Listener = (*fdListener)(nil)

// do runs f with the descriptor, which stays ours meanwhile.
func (l *fdListener) do(f func(fd int) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.fd < 0 {
		return net.ErrClosed
	}
	return f(l.fd)
}

func (l *fdListener) Addr() netip.AddrPort { return l.addr }

// maxAborted bounds how many clients that left the backlog one Accept skips.
const maxAborted = 64

func (l *fdListener) Accept() (Conn, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.fd < 0 {
		return nil, net.ErrClosed
	}
	for range maxAborted {
		fd, _, errno := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(l.fd), 0, 0,
			unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno == 0 {
			return &fdConn{fd: int32(fd)}, nil
		}
		switch errno {
		case unix.EAGAIN:
			return nil, ErrAgain
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			return nil, fmt.Errorf("%w: %w", ErrDescriptors, os.NewSyscallError("accept4", errno))
		case unix.EINTR, unix.ECONNABORTED, unix.EPROTO, unix.ENETDOWN, unix.ENOPROTOOPT,
			unix.EHOSTDOWN, unix.ENONET, unix.EHOSTUNREACH, unix.EOPNOTSUPP, unix.ENETUNREACH, unix.EPERM:
			// accept(2): Linux hands over what is pending on the new socket, and
			// EPERM when a firewall forbids it. The next client is another one.
		default:
			return nil, os.NewSyscallError("accept4", errno)
		}
	}
	return nil, ErrAgain
}

func (l *fdListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	fd := l.fd
	l.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}
