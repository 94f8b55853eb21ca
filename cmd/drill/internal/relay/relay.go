package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/cmd/drill/internal/orders"
)

const (
	bufferBytes = 64 << 10
	edge        = 1 << 31 // EPOLLET
	controlMark = -1      // in EpollEvent.Fd; else a descriptor
	backlog     = 4096
)

// side is one half of a connection.
type side struct {
	pair  *pair
	fd    int // -1: closed
	out   []byte
	eof   bool // it will bring no more
	shut  bool // was told that the other one brings no more
	ready bool // connected
}

// pair is a connection: the client's half and the backend's.
type pair struct {
	client, backend side
	left            int  // backends not tried yet
	cut             bool // forwards nothing any more
}

func (p *pair) other(s *side) *side {
	if s == &p.client {
		return &p.backend
	}
	return &p.client
}

// relay is one process. All of it is owned by the thread of Run, but for health.
type relay struct {
	cfg      Config
	orders   *orders.Reader[command]
	out      *os.File
	epfd     int
	listener int
	backends []unix.SockaddrInet4
	health   *health
	turn     int
	sides    map[int]*side // by descriptor
	buf      []byte
	paused   bool // no descriptor is left: who comes waits in the backlog
	stopping bool
	stop     context.CancelFunc // of health
	wg       sync.WaitGroup     // of health
}

// Child is one process: commands on stdin, answers on stdout.
func Child() error { return Run(os.Stdin, os.Stdout) }

// Run serves until it is told to stop, or control ends.
func Run(control, out *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &relay{orders: orders.From[command](control), out: out, epfd: -1, listener: -1, sides: map[int]*side{}, buf: make([]byte, bufferBytes)}
	defer r.close()
	var err error
	if r.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: controlMark}
	if err := unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, int(control.Fd()), &event); err != nil {
		return fmt.Errorf("epoll: control file: %w", err)
	}
	if err = r.serve(); err != nil {
		r.say(line{Type: "error", Message: err.Error()})
	}
	return err
}

func (r *relay) serve() error {
	events := make([]unix.EpollEvent, 512)
	for !r.stopping {
		n, err := unix.EpollWait(r.epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		for _, e := range events[:n] {
			switch fd := int(e.Fd); {
			case fd == controlMark:
				switch err := r.orders.Obey(r.buf, r.obey); err {
				case nil:
				case io.EOF:
					return nil
				default:
					return err
				}
			case fd == r.listener:
				r.accept()
			default:
				if s := r.sides[fd]; s != nil {
					r.event(s, e.Events)
				}
			}
		}
	}
	return nil
}

func (r *relay) obey(c *command) error {
	answer := line{Type: c.Cmd}
	switch c.Cmd {
	case cmdStart:
		if err := r.listen(c.Config); err != nil {
			return err
		}
	case cmdCut:
		answer.N = r.cut(c.Silent)
	case cmdStop:
		r.stopping = true
	default:
		return fmt.Errorf("unknown command %q", c.Cmd)
	}
	r.say(answer)
	return nil
}

func (r *relay) say(v line) {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = r.out.Write(append(text, '\n'))
	}
	if err != nil {
		r.stopping = true
	}
}

func (r *relay) listen(cfg *Config) error {
	if cfg == nil || r.listener >= 0 {
		return errors.New("start: once, with a config")
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	r.cfg = *cfg
	for _, b := range cfg.Backends {
		r.backends = append(r.backends, sockaddr(b.Addr))
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r.listener = fd
	addr := sockaddr(cfg.Listen)
	for _, err := range []error{
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.Bind(fd, &addr), unix.Listen(fd, backlog),
		unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}),
	} {
		if err != nil {
			return fmt.Errorf("listen on %s: %w", cfg.Listen, err)
		}
	}
	r.health = newHealth(cfg.Backends)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.wg.Go(func() { r.health.run(ctx) }) // ends with ctx; close cancels it and waits
	return nil
}

func sockaddr(text string) unix.SockaddrInet4 {
	a := netip.MustParseAddrPort(text) // Validate has seen it
	return unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// cut ends every connection: with FIN both halves are closed; silently, nothing goes
// through any more, as if the balancer had forgotten them, and whoever closes a half is
// not told on.
func (r *relay) cut(silent bool) (n int) {
	for _, s := range r.sides {
		if s != &s.pair.client || s.pair.cut {
			continue
		}
		n++
		if silent {
			s.pair.cut = true
			continue
		}
		r.end(s.pair)
	}
	return n
}

func (r *relay) close() {
	if r.stop != nil {
		r.stop()
	}
	r.wg.Wait()
	for fd := range r.sides {
		_ = unix.Close(fd)
	}
	for _, fd := range []int{r.listener, r.epfd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
