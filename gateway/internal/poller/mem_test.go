package poller

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

var memWorld = world{
	newPoller: func(t testing.TB) Poller {
		p := NewMem()
		t.Cleanup(func() { p.Close() })
		return p
	},
	pair: func(t *testing.T) (Conn, net.Conn) {
		c, client := MemPipe(8 << 10)
		t.Cleanup(func() { c.Close(); client.Close() })
		return c, client
	},
	listen: func(t *testing.T) (Listener, func() net.Conn) {
		l := MemListen(8 << 10)
		t.Cleanup(func() { l.Close() })
		return l, func() net.Conn {
			c, err := l.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
	},
}

func TestMemKeepsThePromises(t *testing.T) {
	runPromises(t, func(t *testing.T, f func(*testing.T)) { f(t) })(memWorld)
}

func TestMemKeepsThePromisesInABubble(t *testing.T) {
	runPromises(t, func(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) })(memWorld)
}

// A loop waits, clients sleep for hours: the bubble's clock goes on, so a loop in
// Wait is durably blocked, and its timeouts are exact.
func TestMemWaitLetsTheBubblesClockGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewMem()
		defer p.Close()
		c, client := MemPipe(1 << 10)
		defer c.Close()
		if err := p.Add(c, 1); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go func() { // ends by itself; the bubble waits for it
			time.Sleep(time.Hour)
			client.Write([]byte("x"))
			time.Sleep(time.Hour)
			client.Close()
		}()
		for _, step := range []struct {
			timeout time.Duration
			want    int
			at      time.Duration
		}{
			{25 * time.Minute, 0, 25 * time.Minute},
			{-1, 1, time.Hour},
			{30 * time.Minute, 0, 90 * time.Minute},
			{24 * time.Hour, 1, 2 * time.Hour},
		} {
			events, err := p.Wait(nil, step.timeout)
			if err != nil || len(events) != step.want || time.Since(start) != step.at {
				t.Fatalf("Wait = %v, %v at %v; want %d events at %v", events, err, time.Since(start), step.want, step.at)
			}
			c.Read(make([]byte, 8))
		}
		synctest.Wait()
	})
}

func TestMemClientKeepsItsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client := MemPipe(4)
		defer c.Close()
		start := time.Now()
		client.SetReadDeadline(start.Add(time.Minute))
		_, err := client.Read(make([]byte, 1))
		var ne net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() || time.Since(start) != time.Minute {
			t.Fatalf("Read: %v after %v", err, time.Since(start))
		}
		client.SetWriteDeadline(time.Now().Add(time.Minute))
		if n, err := client.Write([]byte("123456")); n != 4 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write = %d, %v; want 4 and the deadline", n, err)
		}
		client.SetDeadline(time.Time{})
		moved := time.AfterFunc(time.Second, func() { client.SetReadDeadline(time.Now()) })
		defer moved.Stop()
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Read with its deadline moved: %v", err)
		}
		client.SetDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { client.Close() })
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("Read in a closed conn: %v", err)
		}
	})
}

func TestMemListenerCloseResetsItsBacklog(t *testing.T) {
	l := MemListen(16)
	client, err := l.Dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, ErrReset) || err == io.EOF {
		t.Fatalf("Read: %v, want a reset", err)
	}
	if _, err := l.Dial(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Dial: %v", err)
	}
}
