// Package floor is the least that a server of events can do, beside which an edge is
// measured: it greets clients of one channel and then writes each event, encoded once, to
// one socket after the other with write(2). It has no queue and no bookkeeping, and what a
// socket does not take at once is an error. Its CPU for a delivery is what the benchmark of
// an edge compares with.
//
// The hidden command `floor` of cmd/drill calls Serve; the benchmark and its test drive it
// in JSON lines. Everything happens on one thread, which ends with its control file.
package floor

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/gobwas/ws"
	"golang.org/x/sys/unix"

	"github.com/spillway-io/spillway/cmd/drill/internal/orders"
	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	"github.com/spillway-io/spillway/cmd/drill/internal/process"
	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// Config says what the floor serves.
type Config struct {
	Channel      string `json:"channel"`
	PayloadBytes int    `json:"payload_bytes"`
}

// command is what the floor is told: to write so many events, each to all clients before
// the next.
type command struct {
	N int `json:"n"`
}

// ready is the one line that the floor says, when it listens.
type ready struct {
	URL string `json:"url"`
}

// Parent drives a floor that is a process of its own.
type Parent struct {
	*process.Process
	URL string
}

// Start runs a command that calls Serve, and waits until it listens.
func Start(cfg process.Config) (*Parent, error) {
	said := make(chan ready, 1)
	cfg.Name, cfg.Line = "floor", func(text []byte) {
		var r ready
		if json.Unmarshal(text, &r) == nil {
			said <- r
		}
	}
	p, err := process.Start(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case r := <-said:
		return &Parent{p, r.URL}, nil
	case <-p.Done():
		return nil, errors.New("floor: it ended")
	}
}

// Write has n events written.
func (p *Parent) Write(n int) error { return p.Tell(command{n}) }

const (
	readBytes = 64 << 10
	maxEvents = 1024
)

var headEnd = []byte("\r\n\r\n")

// floor is one server, owned by the thread of Serve.
type floor struct {
	cfg      Config
	epfd     int
	listener int
	clients  []int          // descriptors that were greeted
	pending  map[int][]byte // descriptors on their way, with what they sent so far
	offset   uint64
	event    []byte
	frame    []byte
	buf      []byte
}

// Serve listens on the loopback, says where, and serves until control ends.
func Serve(cfg Config, control, out *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := &floor{cfg: cfg, pending: map[int][]byte{}, buf: make([]byte, readBytes)}
	addr, err := f.listen(control)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	text, err := json.Marshal(ready{addr})
	if err != nil {
		return err
	}
	if _, err := out.Write(append(text, '\n')); err != nil {
		return err
	}
	return f.serve(control)
}

func (f *floor) listen(control *os.File) (string, error) {
	var err error
	if f.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return "", err
	}
	if f.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return "", err
	}
	if err := unix.Bind(f.listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", err
	}
	if err := unix.Listen(f.listener, 4096); err != nil {
		return "", err
	}
	name, err := unix.Getsockname(f.listener)
	if err != nil {
		return "", err
	}
	for _, fd := range []int{f.listener, int(control.Fd())} {
		if err := f.watch(fd); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("ws://127.0.0.1:%d/v1/ws", name.(*unix.SockaddrInet4).Port), nil
}

func (f *floor) watch(fd int) error {
	return unix.EpollCtl(f.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (f *floor) serve(control *os.File) error {
	events := make([]unix.EpollEvent, maxEvents)
	commands := orders.From[command](control)
	for {
		n, err := unix.EpollWait(f.epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			switch fd := int(e.Fd); fd {
			case f.listener:
				f.accept()
			case int(control.Fd()):
				switch err := commands.Obey(f.buf, f.obey); err {
				case nil:
				case io.EOF:
					return nil
				default:
					return err
				}
			default:
				f.input(fd)
			}
		}
	}
}

func (f *floor) obey(c *command) error {
	for range c.N {
		if err := f.write(); err != nil {
			return err
		}
	}
	return nil
}

func (f *floor) accept() {
	for {
		fd, _, err := unix.Accept4(f.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		if f.watch(fd) != nil {
			_ = unix.Close(fd)
			continue
		}
		f.pending[fd] = nil
	}
}

// input greets a client; later input (pings, closes) is read and forgotten.
func (f *floor) input(fd int) {
	n, err := unix.Read(fd, f.buf)
	if err == unix.EAGAIN {
		return
	}
	have, greeting := f.pending[fd]
	if err != nil || n == 0 {
		delete(f.pending, fd)
		for i, other := range f.clients {
			if other == fd {
				f.clients[i] = f.clients[len(f.clients)-1]
				f.clients = f.clients[:len(f.clients)-1]
				break
			}
		}
		_ = unix.Close(fd)
		return
	}
	if !greeting {
		return
	}
	have = append(have, f.buf[:n]...)
	f.pending[fd] = have
	switch {
	case bytes.HasPrefix(have, []byte("GET ")) && bytes.HasSuffix(have, headEnd):
		f.pending[fd] = []byte{}
		_, _ = unix.Write(fd, AcceptAnswer(have))
	case len(have) > 0 && have[0] == 0x80|byte(ws.OpText):
		if id, ok := connectID(have); ok {
			delete(f.pending, fd)
			f.clients = append(f.clients, fd)
			_, _ = unix.Write(fd, AppendFrame(nil, wire.AppendServer(nil, f.connected(id))))
		}
	}
}

func (f *floor) connected(id uint32) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Id: id, Frame: &clientv1.ServerFrame_Connected{Connected: &clientv1.Connected{
		Session: "floor", PingIntervalMs: 3_600_000, PongTimeoutMs: 3_600_000,
		Subscriptions: []*clientv1.SubscriptionEntry{{Channel: f.cfg.Channel, Epoch: "1", Offset: f.offset}},
	}}}
}

// write sends the next event to everybody.
func (f *floor) write() error {
	f.offset++
	now := time.Now()
	f.event = wire.AppendEvent(f.event[:0], f.cfg.Channel, &gatewayv1.BusEvent{
		Offset: f.offset, TimeMs: uint64(now.UnixMilli()),
		Data: payload.Append(nil, f.cfg.Channel, f.offset, now, f.cfg.PayloadBytes),
	})
	f.frame = AppendFrame(f.frame[:0], f.event)
	for _, fd := range f.clients {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&f.frame[0])), uintptr(len(f.frame)))
		if errno != 0 || int(n) != len(f.frame) {
			return fmt.Errorf("floor: write: %d of %d bytes, %w", int(n), len(f.frame), errno)
		}
	}
	return nil
}

// AppendFrame appends a text frame (RFC 6455 5.2).
func AppendFrame(dst, payload []byte) []byte {
	dst = append(dst, 0x80|byte(ws.OpText))
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, byte(n))
	case n <= 0xffff:
		dst = binary.BigEndian.AppendUint16(append(dst, 126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 127), uint64(n))
	}
	return append(dst, payload...)
}

// AcceptAnswer answers a handshake that is known to be good.
func AcceptAnswer(head []byte) []byte {
	_, key, _ := bytes.Cut(head, []byte("\r\nSec-WebSocket-Key: "))
	key, _, _ = bytes.Cut(key, []byte("\r\n"))
	sum := sha1.Sum(append(bytes.Clone(key), "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...))
	return []byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: " +
		wire.ProtocolJSON + "\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
}

// connectID reads a whole connect frame.
func connectID(b []byte) (uint32, bool) {
	h, err := ws.ReadHeader(bytes.NewReader(b))
	size := ws.HeaderSize(h)
	if err != nil || size < 0 || int64(len(b)-size) < h.Length {
		return 0, false
	}
	payload := bytes.Clone(b[size : size+int(h.Length)])
	ws.Cipher(payload, h.Mask, 0)
	frame, problem := wire.DecodeClient(payload)
	if problem != nil || frame.GetConnect() == nil {
		return 0, false
	}
	return frame.Id, true
}
