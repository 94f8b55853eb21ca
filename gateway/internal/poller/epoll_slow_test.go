//go:build linux

package poller

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// echoLoop is the smallest loop: accepts, and sends back what it reads, with one
// buffer. Conns are known by slot and generation, as a gateway does it.
type echoLoop struct {
	p        Poller
	l        Listener
	slots    []*echoConn
	free     []uint32
	gen      uint64
	buf      []byte
	accepted int
	stop     atomic.Bool
}

type echoConn struct {
	Conn
	token uint64
	held  []byte // what the socket did not take
}

const listenToken = WakeToken - 1

func newEchoLoop(tb testing.TB) *echoLoop {
	p := epollWorld.newPoller(tb)
	l := &echoLoop{p: p, l: mustListen(tb, "127.0.0.1:0", ListenConfig{}), buf: make([]byte, 64<<10)}
	if err := p.Add(l.l, listenToken); err != nil {
		tb.Fatal(err)
	}
	return l
}

func (l *echoLoop) run() error {
	var events []Event
	for !l.stop.Load() {
		var err error
		if events, err = l.p.Wait(events[:0], -1); err != nil {
			return err
		}
		for _, ev := range events {
			if ev.Token == listenToken {
				err = l.accept()
			} else if c := l.find(ev.Token); c != nil {
				err = l.serve(c)
			}
			if err != nil {
				return err
			}
		}
	}
	for _, c := range l.slots {
		if c != nil {
			c.Close()
		}
	}
	return nil
}

func (l *echoLoop) find(token uint64) *echoConn {
	if c := l.slots[uint32(token)]; c != nil && c.token == token {
		return c
	}
	return nil
}

func (l *echoLoop) accept() error {
	for {
		sock, err := l.l.Accept()
		if err == ErrAgain {
			return nil
		}
		if err != nil {
			return err
		}
		slot := uint32(len(l.slots))
		if n := len(l.free); n > 0 {
			slot, l.free = l.free[n-1], l.free[:n-1]
		} else {
			l.slots = append(l.slots, nil)
		}
		l.gen++
		l.accepted++
		c := &echoConn{Conn: sock, token: l.gen<<32 | uint64(slot)}
		l.slots[slot] = c
		if err := l.p.Add(sock, c.token); err != nil {
			return err
		}
	}
}

func (l *echoLoop) serve(c *echoConn) error {
	if len(c.held) == 0 {
		n, err := c.Read(l.buf)
		switch {
		case err == ErrAgain:
			return nil
		case err == io.EOF, err == ErrReset:
			return l.drop(c)
		case err != nil:
			return err
		}
		c.held = l.buf[:n]
	}
	n, err := c.Write(c.held)
	switch {
	case err == ErrReset:
		return l.drop(c)
	case err != nil && err != ErrAgain:
		return err
	}
	c.held = bytes.Clone(c.held[n:])
	full := len(c.held) > 0
	return errors.Join(l.p.SetRead(c.Conn, !full), l.p.SetWrite(c.Conn, full))
}

func (l *echoLoop) drop(c *echoConn) error {
	slot := uint32(c.token)
	l.slots[slot] = nil
	l.free = append(l.free, slot)
	return c.Close()
}

// Many clients come, talk, and leave in every way; each gets back exactly what it
// sent, also on descriptor numbers that others used a moment ago.
func TestManyRealClientsGetTheirOwnBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("several thousand sockets")
	}
	const clients, rounds = 64, 40
	l := newEchoLoop(t)
	var g, server errgroup.Group
	server.Go(l.run) // ends with stop and Wake below, waited for there
	for i := range clients {
		g.Go(func() error { // ends after its rounds; waited for below
			rng := rand.New(rand.NewPCG(uint64(i), 0))
			for round := range rounds {
				if err := talk(l.l.Addr().String(), rng); err != nil {
					return fmt.Errorf("client %d, round %d: %w", i, round, err)
				}
			}
			return nil
		})
	}
	err := g.Wait()
	l.stop.Store(true)
	l.p.Wake()
	if err := errors.Join(err, server.Wait()); err != nil {
		t.Fatal(err)
	}
	if l.accepted != clients*rounds {
		t.Fatalf("accepted %d, want %d", l.accepted, clients*rounds)
	}
}

func talk(addr string, rng *rand.Rand) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	sent := make([]byte, 1+rng.IntN(20_000))
	for i := range sent {
		sent[i] = byte(rng.Uint32())
	}
	if _, err := c.Write(sent); err != nil {
		return err
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("another's bytes")
	}
	if rng.IntN(4) == 0 {
		c.(*net.TCPConn).SetLinger(0)
	}
	return nil
}

// BenchmarkIdleConn reports what a conn costs that does nothing: heap in use by
// its Conn and the poller. It makes 5,000 each time; -benchtime 1x.
func BenchmarkIdleConn(b *testing.B) {
	const conns = 5000
	l := mustListen(b, "127.0.0.1:0", ListenConfig{})
	p := epollWorld.newPoller(b)
	for b.Loop() {
		kept := make([]Conn, 0, conns)
		before := heap()
		var clients []int
		for i := range conns {
			clients = append(clients, rawDial(b, l))
			kept = append(kept, mustAccept(b, l))
			if err := p.Add(kept[i], uint64(i)); err != nil {
				b.Fatal(err)
			}
		}
		after := heap() - uint64(8*cap(clients))
		b.ReportMetric(float64(after-before)/conns, "heap-B/conn")
		b.ReportMetric(0, "ns/op")
		for i, c := range kept {
			c.Close()
			unix.Close(clients[i])
		}
	}
}

// rawDial keeps the client out of the heap that is measured.
func rawDial(tb testing.TB, l Listener) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(l.Addr().Port()), Addr: l.Addr().Addr().As4()})
	}
	if err != nil {
		tb.Fatal(err)
	}
	return fd
}

func heap() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkTurn is one ping through a loop: Wait, Read, Write, and the client's
// write and read, all on this goroutine.
func BenchmarkTurn(b *testing.B) {
	l := mustListen(b, "127.0.0.1:0", ListenConfig{})
	p := epollWorld.newPoller(b)
	client := rawDial(b, l)
	defer unix.Close(client)
	c := mustAccept(b, l)
	if err := p.Add(c, 1); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 4096)
	ping := make([]byte, 64)
	var events []Event
	b.ReportAllocs()
	for b.Loop() {
		unix.Write(client, ping)
		events, _ = p.Wait(events[:0], -1)
		n, err := c.Read(buf)
		if err == nil {
			_, err = c.Write(buf[:n])
		}
		if err != nil || len(events) != 1 {
			b.Fatal(err, len(events))
		}
		unix.Read(client, buf)
	}
}

func BenchmarkParts(b *testing.B) {
	l := mustListen(b, "127.0.0.1:0", ListenConfig{})
	p := epollWorld.newPoller(b)
	client := rawDial(b, l)
	defer unix.Close(client)
	c := mustAccept(b, l)
	if err := p.Add(c, 1); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 4096)
	b.Run("Read/ErrAgain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Read(buf)
		}
	})
	b.Run("Wait/nothing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Wait(nil, 0)
		}
	})
	b.Run("Wake/awake", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Wake()
		}
	})
	b.Run("SetWrite/same", func(b *testing.B) {
		for b.Loop() {
			p.SetWrite(c, false)
		}
	})
}
