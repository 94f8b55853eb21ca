package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

const roleVariable = "SPILLWAY_RELAY_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		if err := Child(); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// backend says its name to everyone, then echoes.
func backend(t *testing.T, name string) string {
	t.Helper()
	return countingBackend(t, name, new(atomic.Int64))
}

func countingBackend(t *testing.T, name string, served *atomic.Int64) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	// Serves until the listener closes; the cleanup waits.
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			served.Add(1)
			go func() { // ends with its conn
				defer c.Close()
				fmt.Fprintln(c, name)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

func start(t *testing.T, backends ...Backend) *Parent {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	t.Setenv(roleVariable, "child")
	p, err := Start([]string{os.Args[0]}, Config{Listen: addr, Backends: backends}, PairsPerProcess+1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// open connects and reads the backend's name.
func open(t *testing.T, p *Parent) (net.Conn, string) {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var name [2]byte
	if _, err := io.ReadFull(c, name[:]); err != nil {
		t.Fatal(err)
	}
	return c, string(name[:1])
}

func TestAllThatGoesInComesBack(t *testing.T) {
	p := start(t, Backend{Addr: backend(t, "a")})
	c, _ := open(t, p)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB: more than buffers hold
	go func() {                                             // ends when all is written or the deadline is over
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
	}
}

func TestADeadBackendIsPassedOver(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := ln.Addr().String()
	_ = ln.Close()
	p := start(t, Backend{Addr: dead}, Backend{Addr: backend(t, "b")})
	for range 8 {
		if _, name := open(t, p); name != "b" {
			t.Errorf("came to %q", name)
		}
	}
}

func TestACutIsHeardOnlyIfItIsNotSilent(t *testing.T) {
	for _, silent := range []bool{false, true} {
		p := start(t, Backend{Addr: backend(t, "a")}) // its own: it hears of closed ones late
		c, _ := open(t, p)
		if n, err := p.Cut(silent); n != 1 || err != nil {
			t.Fatalf("%d cut, %v", n, err)
		}
		_, _ = c.Write([]byte("x"))
		wait := 10 * time.Second
		if silent {
			wait = 300 * time.Millisecond
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		_, err := c.Read(make([]byte, 1))
		if timeout := errors.Is(err, os.ErrDeadlineExceeded); timeout != silent {
			t.Errorf("silent %v: read gave %v", silent, err)
		}
		fresh, _ := open(t, p) // new ones are served
		_ = fresh.Close()
		_ = c.Close()
	}
}

func TestNoWorkForWhoHasGivenUp(t *testing.T) {
	const present = 10
	served := new(atomic.Int64)
	p := start(t, Backend{Addr: countingBackend(t, "a", served)})
	signal := func(s syscall.Signal) {
		for _, c := range p.children {
			if err := c.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	for range 20 {
		c, err := net.Dial("tcp4", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("hello"))
		_ = c.Close()
	}
	signal(syscall.SIGCONT)
	for range present { // behind those who left: the processes have taken all
		open(t, p)
	}
	if n := served.Load(); n != present {
		t.Errorf("the backend saw %d connections, %d clients were there", n, present)
	}
}

// Out after the second failure in a row, in again after the second success.
func TestHealthActsOnTheSecondAnswer(t *testing.T) {
	var bad atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if bad.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()
	h := newHealth([]Backend{{Health: s.URL}, {}})
	for _, x := range []struct{ bad, good bool }{{false, true}, {true, false}} {
		bad.Store(x.bad)
		if got := h.ask(t.Context()); got[0] != x.good || !got[1] {
			t.Errorf("bad %v: %v", x.bad, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHealth([]Backend{{Health: "http://[bad url"}})
		ctx := t.Context()
		go h.run(ctx) // ends with the test's context
		time.Sleep(healthEvery + time.Second)
		if !h.well(0) {
			t.Error("out after one failure")
		}
		time.Sleep(healthEvery)
		if h.well(0) {
			t.Error("in after two failures")
		}
	})
}

func TestABadConfigurationIsAnError(t *testing.T) {
	t.Setenv(roleVariable, "child")
	_, err := Start([]string{os.Args[0]}, Config{Listen: "nowhere"}, 1)
	if err == nil || !strings.Contains(err.Error(), "listen") || !strings.Contains(err.Error(), "backends") {
		t.Errorf("%v", err)
	}
}
