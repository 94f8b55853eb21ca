package loadgen

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/cmd/drill/internal/orders"
	"github.com/spillway-io/spillway/gateway/client/machine"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

const (
	// readBytes is the most that one read takes; behind what was kept of a frame.
	readBytes   = 64 << 10
	statusEvery = 200 * time.Millisecond
	controlMark = -1 // in EpollEvent.Fd, which is the index of a conn otherwise
)

// loop is a generator. All of it is owned by the thread of Run.
type loop struct {
	cfg      Config
	protocol machine.Config // of all machines
	stats    machine.Stats  // of all machines
	targets  []target
	sources  [][4]byte
	accept   []byte // the right answer to handshakeKey
	rand     *rand.Rand
	epfd     int
	socket   func(*conn) error // makes the socket of a conn and begins to connect it
	orders   *orders.Reader[command]
	out      *os.File

	start   time.Time // of the series; loop time counts from it
	startNS int64     // wall clock of start
	now     int64     // loop time, ns, of this turn

	clients  []client
	conns    []*conn // all that were ever made; those that are not in use are free
	free     []*conn
	leaving  []leave
	failures []failure
	want     int   // clients 0..want-1 are to be connected
	begun    int   // clients 0..begun-1 have begun
	ramping  int   // first connects in flight
	up       int   // clients that are connected
	gone     int   // clients that will not come back
	away     bool  // clients that lose their connection stay away for now
	started  int64 // attempts since rateFrom
	rateFrom int64
	timers   timers
	channels map[string]*channel

	buf     []byte // of reads
	scratch []byte // of frames to write
	event   clientv1.ServerFrame

	counts   Counts
	causes   [causes]uint64
	codes    map[uint16]uint64
	refused  map[string]uint64
	errors   map[string]uint64
	arrivals []uint32
	refusals []uint32
	returns  []uint32
	ends     []uint32
	byNode   map[string][]uint32 // arrivals

	// of the phase
	mark      Counts
	markName  string
	markAt    int64
	markCPU   time.Duration
	latency   Histogram
	connect   Histogram
	outage    Histogram
	caughtUp  Histogram
	notify    uint64 // a status each so many deliveries; 0: none
	notifyAt  uint64
	tellNow   bool  // a status is due now
	statusDue int64 // the next one by time
	stopping  bool
}

// Run reads commands from control and writes lines to out until it is told to stop,
// or control ends. It takes its goroutine's thread for itself.
func Run(control, out *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := newLoop()
	l.orders, l.out = orders.From[command](control), out
	defer l.close()
	l.begins()
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: controlMark}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, int(control.Fd()), &event); err != nil {
		return fmt.Errorf("epoll: control file: %w", err)
	}
	err = l.turn()
	if err != nil {
		l.say(line{Type: lineError, Message: err.Error()})
	}
	return err
}

func newLoop() *loop {
	sum := sha1.Sum([]byte(handshakeKey + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	l := &loop{
		epfd: -1, rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		accept:   []byte("Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n"),
		channels: map[string]*channel{}, codes: map[uint16]uint64{}, refused: map[string]uint64{}, errors: map[string]uint64{},
		byNode: map[string][]uint32{}, buf: make([]byte, wire.MaxFrameBytes+2*readBytes),
		event: clientv1.ServerFrame{Frame: &clientv1.ServerFrame_Event{Event: &clientv1.Event{}}},
	}
	l.socket = l.openSocket
	return l
}

// begins starts the clock of the series.
func (l *loop) begins() {
	l.start = time.Now()
	l.startNS = l.start.UnixNano()
	l.now, l.markAt, l.rateFrom, l.started = 0, 0, 0, 0
}

// turn is the life of a generator.
func (l *loop) turn() error {
	events := make([]unix.EpollEvent, maxEventsPolled)
	for !l.stopping {
		l.now = int64(time.Since(l.start))
		l.dueTimers()
		l.dueLeavers()
		l.beginSome()
		l.reportFailed()
		l.status()
		n, err := unix.EpollWait(l.epfd, events, l.timeout())
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		l.now = int64(time.Since(l.start))
		for i := range n {
			e := &events[i]
			if e.Fd == controlMark {
				if err := l.readControl(); err != nil {
					return err
				}
				continue
			}
			if k := l.conns[e.Fd]; k.use == e.Pad {
				l.serve(k, e.Events)
			}
			if l.tellNow { // who waits for it waits for all of this batch otherwise
				l.status()
			}
		}
	}
	return nil
}

// timeout is how long epoll_wait may wait, in ms: rounded up, so that nothing spins
// before its time.
func (l *loop) timeout() int {
	due := l.statusDue
	if t := l.timers.next(); t >= 0 {
		due = min(due, t)
	}
	if len(l.leaving) > 0 {
		due = min(due, l.now+int64(leaveTime)/4)
	}
	if l.begun < l.want && l.ramping < l.cfg.InFlight && l.cfg.Rate > 0 {
		due = min(due, l.rateFrom+l.started*int64(time.Second)/int64(l.cfg.Rate))
	}
	return int(max((due-l.now+int64(time.Millisecond)-1)/int64(time.Millisecond), 0))
}

// dueTimers wakes the machines whose time has come.
func (l *loop) dueTimers() {
	for {
		due := l.timers.next()
		if due < 0 || due > l.now {
			return
		}
		c := l.timers[0].client
		l.timers.clear(&c.timer)
		c.machine.Tick(l.time(), false)
		l.step(c)
	}
}

// beginSome starts as many clients as rate and window allow.
func (l *loop) beginSome() {
	for l.ramping < l.cfg.InFlight && l.begun < l.want {
		if l.cfg.Rate > 0 {
			due := l.rateFrom + l.started*int64(time.Second)/int64(l.cfg.Rate)
			if due > l.now {
				return
			}
			if l.now-due > int64(time.Second) { // unused rate is not saved up
				l.rateFrom, l.started = l.now, 0
			}
			l.started++
		}
		l.begun++
		l.begin(&l.clients[l.begun-1])
	}
}

// serve is what epoll says about one socket.
func (l *loop) serve(k *conn, events uint32) {
	use := k.use
	if k.state == dialing {
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 { // nobody listens there
			_ = unix.Close(k.fd)
			k.fd = -1
			l.next(k)
			return
		}
		if events&unix.EPOLLOUT == 0 {
			return
		}
		l.request(k)
	} else if events&unix.EPOLLOUT != 0 && len(k.out) > 0 {
		l.flush(k)
	}
	if k.use == use && events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.read(k, events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
	}
}

// read takes what the socket has, until it has no more; ended: the end is in it, and no
// further event will tell.
func (l *loop) read(k *conn, ended bool) {
	for use := k.use; k.use == use; {
		kept := copy(l.buf, k.rest)
		n, errno := rawRead(k.fd, l.buf[kept:kept+readBytes])
		switch {
		case errno == syscall.EAGAIN || errno == syscall.EINTR:
			return
		case errno != 0:
			l.connLost(k, CauseReset)
			return
		case n == 0:
			l.connLost(k, CauseEOF)
			return
		}
		k.rest = nil
		l.counts.Reads++
		l.counts.Bytes += uint64(n)
		if err := l.bytes(k, l.buf[:kept+n]); err != nil {
			l.connLost(k, CauseBroken)
			return
		}
		if n < readBytes && !ended { // epoll(7): a short read emptied the socket
			return
		}
	}
}

// rawRead never blocks, so the scheduler need not know of it.
func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

func (l *loop) bytes(k *conn, b []byte) error {
	if k.state == upgrading {
		rest, ok, err := l.answer(k, b)
		if err != nil || !ok {
			return err
		}
		b = rest
	}
	return l.frames(k, b)
}

// close resets all sockets: a close in order would leave a TIME_WAIT on each of our
// ports, and the next run would search for free ones.
func (l *loop) close() {
	linger := unix.Linger{Onoff: 1}
	for _, k := range l.conns {
		if k.fd >= 0 {
			_ = unix.SetsockoptLinger(k.fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
			_ = unix.Close(k.fd)
			k.fd = -1
		}
	}
	if l.epfd >= 0 {
		_ = unix.Close(l.epfd)
	}
}

var errNotStarted = errors.New("the first command must be start")
