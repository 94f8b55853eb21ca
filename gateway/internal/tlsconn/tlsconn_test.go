package tlsconn

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-io/spillway/gateway/internal/poller"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func serverConfig(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"edge"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		SessionTicketsDisabled: true,
	}
}

// edge is one loop with one socket, and the client at its other end.
type edge struct {
	t      *testing.T
	poller *Poller
	raw    poller.Conn
	client net.Conn
	woken  chan struct{}
}

// worlds are the pollers that a TLS conn must work over.
var worlds = map[string]func(t *testing.T) *edge{
	"mem": func(t *testing.T) *edge {
		server, client := poller.MemPipe(8 << 10)
		return newEdge(t, poller.NewMem(), server, client)
	},
	"epoll": func(t *testing.T) *edge {
		p, err := poller.NewEpoll()
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		server, err := poller.Adopt(accepted.(*net.TCPConn))
		if err != nil {
			t.Fatal(err)
		}
		return newEdge(t, p, server, client)
	},
}

func newEdge(t *testing.T, p poller.Poller, raw poller.Conn, client net.Conn) *edge {
	e := &edge{t: t, poller: NewPoller(p), raw: raw, client: client, woken: make(chan struct{}, 1)}
	t.Cleanup(func() {
		client.Close()
		raw.Close()
		e.poller.Close()
	})
	return e
}

func eachWorld(t *testing.T, test func(t *testing.T, e *edge)) {
	for name, world := range worlds {
		t.Run(name, func(t *testing.T) { test(t, world(t)) })
	}
}

// dial makes the client speak TLS and run on f; its error is waited for.
func (e *edge) dial(cfg *tls.Config, f func(c *tls.Conn) error) <-chan error {
	if cfg == nil {
		cfg = &tls.Config{InsecureSkipVerify: true}
	}
	done := make(chan error, 1)
	go func() { // ends with f or when the edge closes the socket; the test waits
		_ = e.client.SetDeadline(time.Now().Add(patience))
		c := tls.Client(e.client, cfg)
		if err := c.Handshake(); err != nil {
			done <- err
			return
		}
		done <- f(c)
	}()
	return done
}

// handshake does an owner's part until the handshake has ended; n is how much is
// read of the socket at a time.
func (e *edge) handshake(cfg *tls.Config, n int) (*Conn, error) {
	e.t.Helper()
	if err := e.poller.Add(e.raw, 1); err != nil {
		e.t.Fatal(err)
	}
	ended := time.Now().Add(patience)
	h := Begin(e.raw, cfg, e.poller.Wake)
	defer h.Abort()
	buf, fed := make([]byte, n), 0
	for time.Now().Before(ended) {
		events, err := e.poller.Wait(nil, time.Second)
		if err != nil {
			e.t.Fatal(err)
		}
		if len(events) > 0 && fed < MaxFlightBytes/2 { // some clients here send on at once
			n, err := e.raw.Read(buf)
			fed += n
			if err != nil && !errors.Is(err, poller.ErrAgain) {
				return nil, err
			}
			if err := h.Feed(buf[:n]); err != nil {
				return nil, err
			}
		}
		if c, done, err := h.Step(); done {
			if err := e.poller.Remove(e.raw); err != nil {
				e.t.Fatal(err)
			}
			return c, err
		}
	}
	e.t.Fatal("the handshake did not end")
	return nil, nil
}

// join is handshake, and the conn put into the poller.
func (e *edge) join() *Conn {
	e.t.Helper()
	c, err := e.handshake(serverConfig(e.t), 4096)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.poller.Add(c, 2); err != nil {
		e.t.Fatal(err)
	}
	return c
}

// turn waits for events and calls f with each until it says that all is done.
func (e *edge) turn(f func(ev poller.Event) (done bool)) {
	e.t.Helper()
	ended := time.Now().Add(patience)
	for time.Now().Before(ended) {
		events, err := e.poller.Wait(nil, time.Second)
		if err != nil {
			e.t.Fatal(err)
		}
		for _, ev := range events {
			if f(ev) {
				return
			}
		}
	}
	e.t.Fatal("it did not come to an end")
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

func TestBytesComeBackInOrderThroughSmallBuffers(t *testing.T) {
	eachWorld(t, func(t *testing.T, e *edge) {
		want := pattern(1 << 20)
		client := e.dial(nil, func(c *tls.Conn) error {
			sent := make(chan error, 1)
			go func() { _, err := c.Write(want); sent <- err }() // ends with the deadline of the socket
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return errors.New("they came back changed")
			}
			return errors.Join(<-sent, c.Close())
		})
		c := e.join()
		var queue []byte
		buf := make([]byte, 1000) // smaller than a record: crypto/tls holds the rest
		e.turn(func(ev poller.Event) bool {
			if ev.Readable && len(queue) < 64<<10 {
				n, err := c.Read(buf)
				if errors.Is(err, io.EOF) {
					return true
				}
				if err != nil && !errors.Is(err, poller.ErrAgain) {
					t.Fatal(err)
				}
				queue = append(queue, buf[:n]...)
			}
			for len(queue) > 0 {
				n, err := c.Write(queue)
				queue = queue[n:]
				if errors.Is(err, poller.ErrAgain) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := e.poller.SetWrite(c, len(queue) > 0); err != nil {
				t.Fatal(err)
			}
			if err := e.poller.SetRead(c, len(queue) < 64<<10); err != nil {
				t.Fatal(err)
			}
			if held := len(c.shim.out); held > chunk+1024 {
				t.Fatalf("%d bytes are held back, a record has %d", held, chunk)
			}
			return false
		})
		if err := <-client; err != nil {
			t.Fatal(err)
		}
	})
}

func TestRecordsThatCameTogetherAreAllReported(t *testing.T) {
	eachWorld(t, func(t *testing.T, e *edge) {
		client := e.dial(nil, func(c *tls.Conn) error {
			for range 20 {
				if _, err := c.Write([]byte("x")); err != nil {
					return err
				}
			}
			return nil
		})
		c, err := e.handshake(serverConfig(t), 4096)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-client; err != nil { // all is in the socket, some perhaps fed already
			t.Fatal(err)
		}
		if err := e.poller.Add(c, 2); err != nil {
			t.Fatal(err)
		}
		total, buf := 0, make([]byte, 1)
		e.turn(func(poller.Event) bool {
			n, err := c.Read(buf)
			if err != nil && !errors.Is(err, poller.ErrAgain) {
				t.Fatal(err)
			}
			total += n
			return total == 20
		})
		if _, err := c.Read(buf); !errors.Is(err, poller.ErrAgain) {
			t.Fatalf("an empty conn says %v", err)
		}
	})
}

func TestAHandshakeMayComeByteByByte(t *testing.T) {
	e := worlds["mem"](t)
	client := e.dial(nil, func(c *tls.Conn) error { return nil })
	if _, err := e.handshake(serverConfig(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := <-client; err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsNoTLSEndsTheHandshake(t *testing.T) {
	eachWorld(t, func(t *testing.T, e *edge) {
		if _, err := e.client.Write([]byte("GET /v1/ws HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := e.handshake(serverConfig(t), 4096); err == nil {
			t.Fatal("a handshake with plain HTTP")
		}
	})
}

func TestAClientThatSpeaksAnOldVersionHearsAnAlert(t *testing.T) {
	e := worlds["mem"](t)
	cfg := serverConfig(t)
	cfg.MinVersion = tls.VersionTLS13
	client := e.dial(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, func(*tls.Conn) error { return nil })
	if _, err := e.handshake(cfg, 4096); err == nil {
		t.Fatal("it was let in")
	}
	var alert tls.AlertError
	if err := <-client; err == nil || errors.As(err, &alert) == false && !bytes.Contains([]byte(err.Error()), []byte("protocol version")) {
		t.Fatalf("the client heard %v", err)
	}
}

func TestAFlightIsBounded(t *testing.T) {
	server, client := poller.MemPipe(1)
	defer client.Close()
	defer server.Close()
	h := Begin(server, serverConfig(t), func() {})
	defer h.Abort()
	// The header of a handshake record that never ends keeps crypto/tls reading.
	if err := h.Feed(append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 100)...)); err != nil {
		t.Fatal(err)
	}
	if err := h.Feed(make([]byte, MaxFlightBytes+1)); !errors.Is(err, ErrFlight) {
		t.Fatalf("got %v", err)
	}
}

func TestASlowReaderIsWrittenWhenItHasRoom(t *testing.T) {
	eachWorld(t, func(t *testing.T, e *edge) {
		begin := make(chan struct{})
		want := pattern(4 << 20)
		client := e.dial(nil, func(c *tls.Conn) error {
			<-begin
			got, err := io.ReadAll(c)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return errors.New("they came changed")
			}
			return nil
		})
		c := e.join()
		queue, begun := want, false
		if err := e.poller.SetWrite(c, true); err != nil {
			t.Fatal(err)
		}
		e.turn(func(ev poller.Event) bool {
			if !ev.Writable {
				_, _ = c.Read(make([]byte, 10))
				return false
			}
			n, err := c.Write(queue)
			if queue = queue[n:]; err != nil && !errors.Is(err, poller.ErrAgain) {
				t.Fatal(err)
			}
			if !begun { // the socket is full
				begun = true
				close(begin)
			}
			return len(queue) == 0
		})
		if err := e.poller.SetWrite(c, false); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		// What is queued below the conn goes out although its owner waits for nothing.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			select {
			case err := <-client:
				if err != nil {
					t.Fatal(err)
				}
				return
			case <-ctx.Done():
				t.Fatal("the client did not hear the end")
			default:
			}
			if _, err := e.poller.Wait(nil, 10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestAnUnreadConnIsNotReported(t *testing.T) {
	e := worlds["mem"](t)
	client := e.dial(nil, func(c *tls.Conn) error { _, err := c.Write(pattern(100)); return err })
	c := e.join()
	if err := <-client; err != nil {
		t.Fatal(err)
	}
	if err := e.poller.SetRead(c, false); err != nil {
		t.Fatal(err)
	}
	if events, _ := e.poller.Wait(nil, 0); len(events) != 0 {
		t.Fatalf("%v", events)
	}
	if err := e.poller.SetRead(c, true); err != nil {
		t.Fatal(err)
	}
	total := 0
	e.turn(func(poller.Event) bool {
		n, _ := c.Read(make([]byte, 30))
		total += n
		return total == 100
	})
}

func TestAClosedConnIsForgotten(t *testing.T) {
	e := worlds["mem"](t)
	client := e.dial(nil, func(c *tls.Conn) error { _, err := c.Write([]byte("x")); return err })
	c := e.join()
	if err := <-client; err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if events, _ := e.poller.Wait(nil, 0); len(events) != 0 {
		t.Fatalf("%v", events)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("read: %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("write: %v", err)
	}
	if len(e.poller.pending)+len(e.poller.blocked) != 0 {
		t.Fatal("the poller remembers it")
	}
}

func TestTheCostOfAHandshakeIsMeasured(t *testing.T) {
	cost, err := Cost(serverConfig(t))
	if err != nil || cost <= costSocket {
		t.Fatalf("%v, %v", cost, err)
	}
	t.Logf("a handshake costs %v of CPU", cost)
}
