package loadgen

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

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
	cfg     Config
	policy  Policy
	targets []target
	sources [][4]byte
	accept  []byte // the right answer to handshakeKey
	rand    *rand.Rand
	epfd    int
	control *os.File
	out     *os.File

	start   time.Time // of the series; loop time counts from it
	startNS int64     // wall clock of start
	now     int64     // loop time, ns, of this turn

	conns    []conn
	want     int     // clients 0..want-1 are to be connected
	begun    int     // clients 0..begun-1 have had a turn
	ready    []*conn // those whose wait is over, first come first served
	inFlight int
	up       int
	started  int64 // attempts since rateFrom
	rateFrom int64
	timers   timers
	channels map[string]*channel

	buf     []byte // of reads
	scratch []byte // of frames to write
	json    []byte
	input   []byte // of control lines

	missing  map[missing]struct{}
	counts   Counts
	causes   [causes]uint64
	codes    map[uint16]uint64
	refused  map[string]uint64
	errors   map[string]uint64
	arrivals []uint32
	refusals []uint32
	ends     []uint32

	// of the phase
	mark      Counts
	markName  string
	markAt    int64
	markCPU   time.Duration
	latency   Histogram
	connect   Histogram
	notify    uint64 // a status each so many deliveries; 0: none
	notifyAt  uint64
	tell      bool  // a status is due now
	statusDue int64 // the next one by time
	stopping  bool
}

// Run reads commands from control and writes lines to out until it is told to stop,
// or control ends. It takes its goroutine's thread for itself.
func Run(control, out *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := &loop{
		control: control, out: out, epfd: -1, rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		channels: map[string]*channel{}, missing: map[missing]struct{}{}, codes: map[uint16]uint64{},
		refused: map[string]uint64{}, errors: map[string]uint64{}, buf: make([]byte, wire.MaxFrameBytes+2*readBytes),
	}
	defer l.close()
	sum := sha1.Sum([]byte(handshakeKey + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	l.accept = []byte("Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n")
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
		l.beginSome()
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
			l.serve(&l.conns[e.Fd], e.Events)
			if l.tell { // who waits for it waits for all of this batch otherwise
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
	if (l.begun < l.want || len(l.ready) > 0) && l.inFlight < l.cfg.InFlight && l.cfg.Rate > 0 {
		due = min(due, l.rateFrom+l.started*int64(time.Second)/int64(l.cfg.Rate))
	}
	return int(max((due-l.now+int64(time.Millisecond)-1)/int64(time.Millisecond), 0))
}

// beginSome starts the attempts that rate and window allow.
func (l *loop) beginSome() {
	for l.inFlight < l.cfg.InFlight && (len(l.ready) > 0 || l.begun < l.want) {
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
		var c *conn
		if len(l.ready) > 0 {
			c, l.ready = l.ready[0], l.ready[1:]
		} else {
			c = &l.conns[l.begun]
			l.begun++
		}
		l.begin(c)
	}
}

// serve is what epoll says about one socket.
func (l *loop) serve(c *conn, events uint32) {
	if c.fd < 0 {
		return
	}
	if c.state == dialing {
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			l.end(c, CauseReset)
			return
		}
		if events&unix.EPOLLOUT == 0 {
			return
		}
		if l.request(c); c.fd < 0 {
			return
		}
	} else if events&unix.EPOLLOUT != 0 && len(c.out) > 0 {
		if l.flush(c); c.fd < 0 {
			return
		}
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.read(c)
	}
}

// read takes what the socket has, until it has no more.
func (l *loop) read(c *conn) {
	for c.fd >= 0 {
		kept := copy(l.buf, c.rest)
		n, errno := rawRead(c.fd, l.buf[kept:kept+readBytes])
		switch {
		case errno == syscall.EAGAIN || errno == syscall.EINTR:
			return
		case errno != 0:
			l.end(c, CauseReset)
			return
		case n == 0:
			l.end(c, CauseEOF)
			return
		}
		c.rest, c.lastRead = nil, l.now
		l.counts.Reads++
		l.counts.Bytes += uint64(n)
		if err := l.bytes(c, l.buf[:kept+n]); err != nil {
			l.end(c, CauseBroken)
			return
		}
		if n < readBytes { // epoll(7): a short read emptied the socket
			return
		}
	}
}

// rawRead never blocks, so the scheduler need not know of it.
func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

func (l *loop) bytes(c *conn, b []byte) error {
	if c.state == upgrading {
		rest, ok, err := l.answer(c, b)
		if err != nil || !ok {
			return err
		}
		b = rest
	}
	return l.frames(c, b)
}

// end closes the socket, counts why, and asks the policy about the next attempt.
func (l *loop) end(c *conn, cause Cause) {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
	wasUp := c.state == up
	if !wasUp && c.refused != "" && cause != CauseLocal {
		cause = CauseRefused // however the stream ended after it
	}
	e := End{Cause: cause, Code: c.code, Wait: c.wait, RetryWindow: c.window}
	l.causes[cause]++
	if c.code != 0 {
		l.codes[c.code]++
	}
	if wasUp {
		l.up--
		l.ends = count(l.ends, time.Duration(l.now))
		e.Up = time.Duration(l.now - c.upSince)
	} else {
		l.inFlight--
		c.failures++
		e.Failures = c.failures
		l.countFailure(c, cause)
	}
	c.fd, c.state, c.rest, c.out, c.pinged = -1, away, nil, nil, 0
	l.timers.clear(c)
	if l.policy == nil {
		return
	}
	if wait, again := l.policy.Next(e, l.rand); again {
		l.timers.set(c, l.now+int64(wait))
	}
}

func (l *loop) countFailure(c *conn, cause Cause) {
	if cause != CauseRefused {
		l.counts.Failed++
		return
	}
	l.counts.Refused++
	l.refused[c.refused]++
	l.refusals = count(l.refusals, time.Duration(l.now))
}

// codeNames has the codes as JSON keys.
func (l *loop) codeNames() map[string]uint64 {
	m := make(map[string]uint64, len(l.codes))
	for code, n := range l.codes {
		m[strconv.Itoa(int(code))] = n
	}
	return m
}

// close resets all sockets: a close in order would leave a TIME_WAIT on each of our
// ports, and the next run would search for free ones.
func (l *loop) close() {
	linger := unix.Linger{Onoff: 1}
	for i := range l.conns {
		if c := &l.conns[i]; c.fd >= 0 {
			_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
			_ = unix.Close(c.fd)
			c.fd = -1
		}
	}
	if l.epfd >= 0 {
		_ = unix.Close(l.epfd)
	}
}

var errNotStarted = errors.New("the first command must be start")
