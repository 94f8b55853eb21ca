package poller

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchEvents is how many events one epoll_wait can return: 6 KiB a loop. More
// are left for the next Wait, in the kernel's round-robin order.
const batchEvents = 512

// Where the loop stands, as Wake sees it.
//
//	awake --Wait--> asleep --Wake (writes the eventfd)--> woken
//	  ^  \--------------Wake (writes nothing)------------>  |
//	  \-------------------Wait returns---------------------/
const (
	stateAwake uint32 = iota
	stateAsleep
	stateWoken
)

// Epoll is the Poller over Linux epoll; its conns come from Listen or Adopt.
type Epoll struct {
	// atomic
	state  atomic.Uint32
	writes atomic.Uint64 // eventfd writes: wakes that were not free

	wakeMu sync.Mutex // guards wakeFD: no write to a number that Close gave back
	wakeFD int        // -1: closed

	// owned by the loop
	fd     int // -1: closed
	events [batchEvents]unix.EpollEvent
}

var _ Poller = (*Epoll)(nil)

// NewEpoll opens an epoll instance and an eventfd.
func NewEpoll() (*Epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open epoll: %w", os.NewSyscallError("epoll_create1", err))
	}
	wakeFD, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open epoll: %w", os.NewSyscallError("eventfd", err))
	}
	p := &Epoll{fd: fd, wakeFD: wakeFD}
	// Edge-triggered: every write to the eventfd is an edge, so it is never read,
	// which saves a system call for each wake. Its counter ends after 2^64.
	if err := p.ctl(unix.EPOLL_CTL_ADD, wakeFD, unix.EPOLLIN|unix.EPOLLET, WakeToken); err != nil {
		return nil, errors.Join(fmt.Errorf("open epoll: %w", err), p.Close())
	}
	return p, nil
}

// ctl passes the token in the 64 bits that the kernel hands back untouched.
func (p *Epoll) ctl(op, fd int, mask uint32, token uint64) error {
	ev := unix.EpollEvent{Events: mask, Fd: int32(uint32(token)), Pad: int32(token >> 32)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, op, fd, &ev))
}

// Add watches a Conn or a Listener of this package.
func (p *Epoll) Add(s Source, token uint64) error {
	if token == WakeToken {
		return fmt.Errorf("poller: token %#x is reserved", token)
	}
	switch s := s.(type) {
	case *fdConn:
		if s.fd < 0 {
			return net.ErrClosed
		}
		if s.mask != 0 {
			return ErrForeign
		}
		const mask = unix.EPOLLIN | unix.EPOLLRDHUP
		if err := p.ctl(unix.EPOLL_CTL_ADD, int(s.fd), mask, token); err != nil {
			return err
		}
		s.token, s.mask = token, mask
		return nil
	case *fdListener:
		// Exclusive: of the loops that share a listener one is woken, not all.
		return s.do(func(fd int) error {
			return p.ctl(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE, token)
		})
	}
	return ErrForeign
}

// SetRead is described at Poller.
func (p *Epoll) SetRead(c Conn, on bool) error { return p.set(c, unix.EPOLLIN, on) }

// SetWrite is described at Poller.
func (p *Epoll) SetWrite(c Conn, on bool) error { return p.set(c, unix.EPOLLOUT, on) }

func (p *Epoll) set(c Conn, bit uint32, on bool) error {
	f, ok := c.(*fdConn)
	switch {
	case !ok:
		return ErrForeign
	case f.fd < 0:
		return net.ErrClosed
	case f.mask == 0:
		return ErrForeign
	}
	mask := f.mask &^ bit
	if on {
		mask |= bit
	}
	if mask == f.mask {
		return nil
	}
	if err := p.ctl(unix.EPOLL_CTL_MOD, int(f.fd), mask, f.token); err != nil {
		return err
	}
	f.mask = mask
	return nil
}

// Remove is described at Poller.
func (p *Epoll) Remove(s Source) error {
	switch s := s.(type) {
	case *fdConn:
		if s.fd < 0 {
			return net.ErrClosed
		}
		if s.mask == 0 {
			return ErrForeign
		}
		if err := p.ctl(unix.EPOLL_CTL_DEL, int(s.fd), 0, 0); err != nil {
			return err
		}
		s.mask = 0
		return nil
	case *fdListener:
		return s.do(func(fd int) error { return p.ctl(unix.EPOLL_CTL_DEL, fd, 0, 0) })
	}
	return ErrForeign
}

// Wait looks once without blocking, by a raw system call, and only if nothing is
// ready gives up its thread for a blocking one: a busy loop never pays for the
// scheduler, an idle one pays 0.3 us before it sleeps.
func (p *Epoll) Wait(dst []Event, timeout time.Duration) ([]Event, error) {
	if p.fd < 0 {
		return dst, net.ErrClosed
	}
	n, err := p.poll()
	if err == nil && n == 0 && timeout != 0 && p.state.CompareAndSwap(stateAwake, stateAsleep) {
		n, err = p.block(timeout)
	}
	// Whoever called Wake before this line posted before it too, and the caller
	// looks at its inbox after Wait: nothing is missed by forgetting the call.
	p.state.Store(stateAwake)
	if err != nil {
		return dst, err
	}
	for i := range n {
		ev := &p.events[i]
		token := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
		if token == WakeToken {
			continue
		}
		hangup := ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
		dst = append(dst, Event{
			Token:    token,
			Readable: ev.Events&unix.EPOLLIN != 0 || hangup,
			Writable: ev.Events&unix.EPOLLOUT != 0,
			Hangup:   hangup,
		})
	}
	return dst, nil
}

// poll returns what is ready now. A signal cannot interrupt it: it does not sleep.
func (p *Epoll) poll() (int, error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), batchEvents, 0, 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case syscall.EINTR:
		return 0, nil
	}
	return 0, os.NewSyscallError("epoll_wait", errno)
}

// block sleeps until something is ready, the time is over, or Wake.
func (p *Epoll) block(timeout time.Duration) (int, error) {
	var until time.Time
	if timeout > 0 {
		until = time.Now().Add(timeout)
	}
	for {
		n, err := unix.EpollWait(p.fd, p.events[:], milliseconds(timeout))
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.EINTR): // the runtime's preemption signals end it early
			return 0, os.NewSyscallError("epoll_wait", err)
		}
		if timeout > 0 {
			if timeout = time.Until(until); timeout <= 0 {
				return 0, nil
			}
		}
	}
}

// milliseconds rounds up: a loop told to wait 10 us must not spin through them.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}

// Wake is described at Poller.
func (p *Epoll) Wake() {
	if p.state.Swap(stateWoken) != stateAsleep {
		return
	}
	p.wakeMu.Lock()
	defer p.wakeMu.Unlock()
	if p.wakeFD < 0 {
		return
	}
	// One, in the machine's byte order: the counter is never read and must not
	// come near its end, since a write that fails is no edge.
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	if _, err := unix.Write(p.wakeFD, one[:]); err != nil {
		panic("poller: write to eventfd: " + err.Error())
	}
	p.writes.Add(1)
}

// Wakes returns how many calls of Wake found the loop asleep and had to write to
// the eventfd; all the others were free. Safe from any goroutine.
func (p *Epoll) Wakes() uint64 { return p.writes.Load() }

// Close is described at Poller.
func (p *Epoll) Close() error {
	if p.fd < 0 {
		return nil
	}
	p.wakeMu.Lock()
	err := unix.Close(p.wakeFD)
	p.wakeFD = -1
	p.wakeMu.Unlock()
	err = errors.Join(os.NewSyscallError("close", err), os.NewSyscallError("close", unix.Close(p.fd)))
	p.fd = -1
	return err
}
