//go:build linux

package poller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

var epollWorld = world{
	newPoller: func(t testing.TB) Poller {
		p, err := NewEpoll()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	},
	pair: func(t *testing.T) (Conn, net.Conn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c, err := Adopt(nc.(*net.TCPConn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); client.Close() })
		return c, client
	},
	listen: func(t *testing.T) (Listener, func() net.Conn) {
		l := mustListen(t, "127.0.0.1:0", ListenConfig{})
		return l, func() net.Conn { return mustDial(t, l) }
	},
}

func mustListen(t testing.TB, addr string, cfg ListenConfig) Listener {
	t.Helper()
	l, err := Listen(context.Background(), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustDial(t testing.TB, l Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestEpollKeepsThePromises(t *testing.T) {
	runPromises(t, func(t *testing.T, f func(*testing.T)) { f(t) })(epollWorld)
}

func TestAcceptedSocketsAreReadyForALoop(t *testing.T) {
	l := mustListen(t, "127.0.0.1:0", ListenConfig{})
	mustDial(t, l)
	c := mustAccept(t, l)
	defer c.Close()
	fd := int(c.(*fdConn).fd)
	if on, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || on == 0 {
		t.Errorf("TCP_NODELAY = %d, %v", on, err)
	}
	if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_TCP {
		t.Errorf("SO_PROTOCOL = %d, %v", proto, err)
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || fl&unix.O_NONBLOCK == 0 {
		t.Errorf("F_GETFL = %#x, %v: blocks", fl, err)
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("F_GETFD = %#x, %v: inherited by children", fl, err)
	}
}

func mustAccept(t testing.TB, l Listener) Conn {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		c, err := l.Accept()
		if err == nil {
			return c
		}
		if err != ErrAgain {
			t.Fatal(err)
		}
	}
	t.Fatal("nobody to accept")
	return nil
}

func TestListenersSharePortsOnlyWhenAsked(t *testing.T) {
	alone := mustListen(t, "127.0.0.1:0", ListenConfig{})
	if l, err := Listen(context.Background(), alone.Addr().String(), ListenConfig{}); err == nil {
		l.Close()
		t.Fatal("two listeners on one port")
	} else if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), alone.Addr().String()) {
		t.Fatalf("%v: want EADDRINUSE with the address", err)
	}
	first := mustListen(t, "127.0.0.1:0", ListenConfig{ReusePort: true})
	mustListen(t, first.Addr().String(), ListenConfig{ReusePort: true})
}

func TestIPv6AndIPv4MappedAddresses(t *testing.T) {
	l, err := Listen(context.Background(), ":0", ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strings.Split(l.Addr().String(), "]:")[1]))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := mustAccept(t, l)
	defer c.Close()
	if got := c.RemoteAddr().String(); got != client.LocalAddr().String() {
		t.Fatalf("RemoteAddr = %s, want %s", got, client.LocalAddr())
	}
}

// Wakes of a loop that is awake are free: they do not touch the eventfd.
func TestWakeOfAnAwakeLoopIsFree(t *testing.T) {
	p, err := NewEpoll()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 1000 {
		p.Wake()
	}
	if n := p.Wakes(); n != 0 {
		t.Fatalf("%d writes to the eventfd, want none", n)
	}
	done := make(chan struct{})
	go func() { // ends with the Wake below; waited for through done
		defer close(done)
		p.Wait(nil, 0) // forgets the wakes from above
		p.Wait(nil, -1)
	}()
	for p.state.Load() != stateAsleep {
		runtime.Gosched() // ends when the goroutine sleeps
	}
	for range 1000 {
		p.Wake()
	}
	<-done
	if n := p.Wakes(); n != 1 {
		t.Fatalf("%d writes to the eventfd, want one", n)
	}
}

// The eventfd is never read; it wakes all the same, however often it did before.
func TestEverySleepEndsWithAWake(t *testing.T) {
	p, err := NewEpoll()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const rounds = 2000
	var g errgroup.Group
	g.Go(func() error { // ends after its rounds; waited for below
		for round := range rounds {
			start := time.Now()
			if _, err := p.Wait(nil, patience); err != nil {
				return err
			}
			if time.Since(start) >= patience {
				return fmt.Errorf("sleep %d was not ended", round)
			}
		}
		return nil
	})
	for woken := 0; woken < rounds; {
		if p.state.CompareAndSwap(stateAsleep, stateAsleep) {
			p.Wake()
			woken++
		}
		runtime.Gosched()
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := p.Wakes(); n != rounds {
		t.Fatalf("%d writes to the eventfd, want %d", n, rounds)
	}
}

// Every post is seen: posters add and wake, the loop sleeps without timeout.
func TestNoWakeIsLost(t *testing.T) {
	p, err := NewEpoll()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const posters, each = 4, 2000
	var mu sync.Mutex // guards inbox
	inbox := 0
	var wg sync.WaitGroup
	for range posters {
		wg.Go(func() { // ends after its posts; waited for below
			for range each {
				mu.Lock()
				inbox++
				mu.Unlock()
				p.Wake()
			}
		})
	}
	for seen := 0; seen < posters*each; {
		start := time.Now()
		if _, err := p.Wait(nil, patience); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) >= patience {
			t.Fatalf("a wake was lost after %d posts", seen)
		}
		mu.Lock()
		seen += inbox
		inbox = 0
		mu.Unlock()
	}
	wg.Wait()
}

// With no descriptor left, a client is still accepted and refused. In a process
// of its own, since the limit is the process's.
func TestReserveLetsAcceptRefuseWithoutDescriptors(t *testing.T) {
	const env = "SPILLWAY_TEST_RESERVE"
	if os.Getenv(env) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	l := mustListen(t, "127.0.0.1:0", ListenConfig{})
	r, err := NewReserve(3)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	client := mustDial(t, l)
	mustUseUpDescriptors(t)
	if _, err := l.Accept(); !errors.Is(err, ErrDescriptors) || !errors.Is(err, unix.EMFILE) {
		t.Fatalf("Accept = %v, want ErrDescriptors and EMFILE", err)
	}
	if !r.Release() || r.Held() != 2 {
		t.Fatalf("Release failed, %d held", r.Held())
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Refill(); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("Refill = %v, want EMFILE", err)
	}
	mustWrite(t, c, "503")
	c.Close()
	if got, err := io.ReadAll(client); string(got) != "503" || err != nil {
		t.Fatalf("client read %q, %v", got, err)
	}
	if err := r.Refill(); err != nil || r.Held() != 3 {
		t.Fatalf("Refill = %v, %d held", err, r.Held())
	}
}

// mustUseUpDescriptors lowers the limit to what is open now.
func mustUseUpDescriptors(t *testing.T) {
	t.Helper()
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	lim.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
}

func TestAReserveGivesUpNoMoreThanItHas(t *testing.T) {
	r, err := NewReserve(1)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Release() || r.Release() {
		t.Fatal("want one descriptor")
	}
	if err := r.Refill(); err != nil || r.Held() != 1 {
		t.Fatalf("Refill = %v, %d held", err, r.Held())
	}
	r.Close()
	if err := r.Refill(); err != nil || r.Held() != 0 {
		t.Fatalf("after Close: %v, %d held", err, r.Held())
	}
}
