package poller

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fdConn is a socket known by its descriptor. 16 B, no pointers: the garbage
// collector does not look inside. Owned by the loop that has it.
type fdConn struct {
	token uint64 // of the poller it is in; epoll_ctl wants it again at each change
	fd    int32  // -1: closed
	mask  uint32 // epoll interest; 0: in no poller
}

var _ Conn = (*fdConn)(nil)

// Read and Write use raw system calls: a non-blocking socket answers in less time
// than the scheduler needs to be told that the thread is away (20 ns quiet, up to
// 1 us under load for a write).

func (c *fdConn) Read(p []byte) (int, error) {
	if c.fd < 0 {
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ,
			uintptr(c.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch {
		case errno == 0 && n == 0:
			return 0, io.EOF
		case errno == 0:
			return int(n), nil
		case errno != syscall.EINTR:
			return 0, ioError("read", errno)
		}
	}
}

func (c *fdConn) Write(p []byte) (int, error) {
	if c.fd < 0 {
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO,
			uintptr(c.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == 0:
			return int(n), nil
		case errno != syscall.EINTR:
			return 0, ioError("send", errno)
		}
	}
}

func (c *fdConn) CloseWrite() error {
	if c.fd < 0 {
		return net.ErrClosed
	}
	if err := unix.Shutdown(int(c.fd), unix.SHUT_WR); err != nil {
		if errors.Is(err, unix.ENOTCONN) {
			return ErrReset
		}
		return os.NewSyscallError("shutdown", err)
	}
	return nil
}

// Close leaves it to the kernel to take the descriptor out of its epoll: no
// duplicate of it is left, here (Adopt closes its source) or in children
// (CLOEXEC).
func (c *fdConn) Close() error {
	if c.fd < 0 {
		return nil
	}
	fd := int(c.fd)
	c.fd, c.mask = -1, 0
	// Never again on EINTR: Linux has closed it, the number may be another's.
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("close", err)
	}
	return nil
}

func (c *fdConn) Reset() error {
	if c.fd < 0 {
		return nil
	}
	err := unix.SetsockoptLinger(int(c.fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return errors.Join(os.NewSyscallError("setsockopt", err), c.Close())
}

func (c *fdConn) RemoteAddr() netip.AddrPort {
	if c.fd < 0 {
		return netip.AddrPort{}
	}
	sa, err := unix.Getpeername(int(c.fd))
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(sa)
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// ioError gives the errors callers branch on their names.
func ioError(call string, errno syscall.Errno) error {
	switch errno {
	case syscall.EAGAIN:
		return ErrAgain
	case syscall.ECONNRESET, syscall.EPIPE:
		return ErrReset
	}
	return os.NewSyscallError(call, errno)
}

// Adopt takes over an established conn of package net, which is closed on
// success and on error alike; the socket lives on in the Conn.
func Adopt(c *net.TCPConn) (Conn, error) {
	fd, err := takeOver(c)
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("adopt: %w", os.NewSyscallError("setsockopt", err))
	}
	return &fdConn{fd: int32(fd)}, nil
}

// takeOver duplicates the descriptor of a conn or listener of package net and
// closes the original, which also takes it out of the Go runtime's own epoll.
func takeOver(s interface {
	syscall.Conn
	io.Closer
}) (int, error) {
	defer s.Close()
	raw, err := s.SyscallConn()
	if err != nil {
		return -1, err
	}
	var fd int
	var dupErr error
	err = raw.Control(func(orig uintptr) {
		fd, dupErr = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, os.NewSyscallError("fcntl", dupErr)); err != nil {
		return -1, err
	}
	// Package net made it non-blocking, and that belongs to the open file, not
	// to the number. Said again, since everything here relies on it.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}
