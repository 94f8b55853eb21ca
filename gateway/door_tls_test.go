package gateway

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	sdk "github.com/spillway-io/spillway/gateway/client"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"edge.example"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// newSecureWorld is an edge that ends TLS, at most so many handshakes a second.
func newSecureWorld(t *testing.T, perSecond int, change func(*Config)) *world {
	cert := certificate(t)
	return newWorld(t, func(c *Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		c.TLSHandshakesPerSecond = perSecond
		if change != nil {
			change(c)
		}
	})
}

var trusting = &tls.Config{InsecureSkipVerify: true} // what is tested is the edge, not its certificate

func TestAnEdgeThatEndsTLSDeliversAsOneThatDoesNot(t *testing.T) {
	w := newSecureWorld(t, 0, nil)
	u := w.user("chat:1", tokenOf(t, nil), sdk.WithTLSConfig(trusting))
	big := `"` + strings.Repeat("spillway ", 5_000) + `"` // more than two records
	for i := range 40 {
		data := fmt.Sprint(i)
		if i%4 == 0 {
			data = big
		}
		w.publish("chat:1", data)
	}
	u.caughtUp(t, 40)
	u.cut()
	w.publish("chat:1", `"while it was away"`)
	u.caughtUp(t, 41)
}

func TestIdleTLSConnsHaveNoGoroutine(t *testing.T) {
	w := newSecureWorld(t, 0, nil)
	open := func(n int) {
		for range n {
			upgradeOver(t, secureConn(t, w.edge.Addr()))
		}
	}
	open(1)
	eventually(t, "its handshake is over", func() bool { return handshaking() == 0 })
	before := runtime.NumGoroutine()
	open(30)
	eventually(t, "31 conns", func() bool { return w.edge.counts.conns.Load() == 31 })
	eventually(t, "no more goroutines than with one", func() bool { return runtime.NumGoroutine() <= before })
}

// handshaking counts the goroutines of handshakes.
func handshaking() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("tlsconn.(*Handshake).run"))
}

// secureConn does a handshake with an edge.
func secureConn(t *testing.T, addr string) *tls.Conn {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", addr, trusting)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// upgradeOver makes a WebSocket of a conn.
func upgradeOver(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte(secureUpgrade)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != 101 {
		t.Fatalf("%v, %v", response, err)
	}
}

const secureUpgrade = "GET /v1/ws HTTP/1.1\r\nHost: edge.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: spillway.v1.json\r\n\r\n"

// What is past the budget waits unread and is then reset: before TLS nothing can be
// said. Who has a connection does not notice.
func TestHandshakesPastTheBudgetWaitAndAreReset(t *testing.T) {
	w := newSecureWorld(t, 10, func(c *Config) { c.Hot.Admission.Wait = time.Second })
	u := w.user("chat:1", tokenOf(t, nil), sdk.WithTLSConfig(trusting))
	done := make(chan error, 60)
	start := time.Now()
	for range 60 {
		go func() { // ends with the handshake or a reset; received below
			c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", w.edge.Addr(), trusting)
			if err == nil {
				c.Close()
			}
			done <- err
		}()
	}
	served := 0
	for range 60 {
		if err := <-done; err == nil {
			served++
		}
	}
	most := 1 + 10*time.Since(start).Seconds() + 1
	if served < 5 || float64(served) > most {
		t.Errorf("%d handshakes in %v", served, time.Since(start))
	}
	refused := w.metric("refused_total", "tls_budget")
	if int(refused)+served != 60 {
		t.Errorf("%d served and %v counted as reset, of 60", served, refused)
	}
	w.publish("chat:1", "1")
	u.caughtUp(t, 1)
	if n := u.Stats().Interruptions; n != 0 {
		t.Errorf("%d interruptions", n)
	}
}

// Clients whose addresses a confirmed grant names do not stand in line with the rest.
func TestTheBudgetOfHandshakesIsHot(t *testing.T) {
	w := newSecureWorld(t, 1, func(c *Config) { c.Hot.Admission.Wait = 30 * time.Second })
	secureConn(t, w.edge.Addr()) // the burst
	done := make(chan error, 20)
	start := time.Now()
	for range 20 {
		go func() { // ends with the handshake or the dialer's timeout; received below
			c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", w.edge.Addr(), trusting)
			if err == nil {
				c.Close()
			}
			done <- err
		}()
	}
	eventually(t, "they wait", func() bool { return w.metric("accepted_total") == 21 })
	s := w.edge.Settings()
	s.TLSHandshakesPerSecond = 1_000
	if err := w.edge.Reload(s); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(start); took > 15*time.Second { // 20 s at the old rate
		t.Errorf("it took %v", took)
	}
}

func TestClientsOfAConfirmedGrantPassTheTLSGateFirst(t *testing.T) {
	w := newSecureWorld(t, 2, func(c *Config) { c.Hot.Admission.Wait = 20 * time.Second })
	offer := w.edge.gate.Offer(&gatewayv1.GrantRequest{Operation: "op", Edge: "edge-2", Number: 1, Movable: 5, WindowMs: 5000})
	held := w.edge.gate.Confirm(&gatewayv1.GrantConfirm{
		Operation: "op", Edge: "edge-2", Number: 1, Movable: offer.Movable, LastSlotMs: 5000, Sources: []string{"127.0.0.77"},
	})
	if !held.Held {
		t.Fatalf("%v", offer)
	}
	for range 20 { // ten seconds' worth
		go func() { // ends with the edge
			if c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", w.edge.Addr(), trusting); err == nil {
				c.Close()
			}
		}()
	}
	eventually(t, "a queue", func() bool { return w.metric("waiting_tls_conns") >= 15 })
	granted := &net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}}
	c, err := tls.DialWithDialer(granted, "tcp", w.edge.Addr(), trusting)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := w.metric("waiting_tls_conns"); n < 5 {
		t.Errorf("only %v were still waiting behind it", n)
	}
}

// Clients move from one edge that ends TLS to another as others do, and the receiver
// hears beforehand where they come from.
func TestADrainBetweenEdgesThatEndTLSInterruptsNobody(t *testing.T) {
	t.Parallel()
	cert := certificate(t)
	f := newFleetOf(t, func(_ string, c *Config) { c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} }, "e1", "e2")
	c := f.crowd("e1", 20)
	var named atomic.Bool
	f.set(func() {
		answer := f.serving["e2"]
		f.serving["e2"] = func(question []byte) []byte {
			var q gatewayv1.PeerRequest
			if err := proto.Unmarshal(question, &q); err != nil {
				t.Error(err)
			}
			if slices.Contains(q.GetConfirm().GetSources(), "127.0.0.1") {
				named.Store(true)
			}
			return answer(question)
		}
	})
	f.edges["e1"].leave()
	f.waitEnd("e1")
	eventually(t, "all came up elsewhere", func() bool { return f.conns("e2") == 20 })
	c.rest()
	if n := c.interruptions(); n != 0 {
		t.Errorf("%d streams were interrupted", n)
	}
	if !named.Load() {
		t.Error("the receiver did not hear where they come from")
	}
}

func TestWhatIsNoTLSIsRefusedBySuchAnEdge(t *testing.T) {
	w := newSecureWorld(t, 0, nil)
	c, err := net.Dial("tcp", w.edge.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte(secureUpgrade)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	n, _ := c.Read(answer) // an alert, or the end
	if bytes.HasPrefix(answer[:n], []byte("HTTP/1.1 101")) {
		t.Fatal("it was let in")
	}
	eventually(t, "it is counted", func() bool {
		return w.metric("refused_total", "tls") == 1
	})
}

func TestARefusalPastTLSIsReadable(t *testing.T) {
	w := newSecureWorld(t, 0, func(c *Config) {
		c.Hot.Admission.FreshPerSecond, c.Hot.Admission.FreshBurst, c.Hot.Admission.Wait = 1, 1, 0
	})
	upgradeOver(t, secureConn(t, w.edge.Addr()))
	c := secureConn(t, w.edge.Addr())
	if _, err := c.Write([]byte(secureUpgrade)); err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	if _, err := all.ReadFrom(c); err != nil { // close_notify ends it
		t.Fatal(err)
	}
	if !bytes.Contains(all.Bytes(), []byte(`"type":"busy"`)) || !bytes.Contains(all.Bytes(), []byte{0x0f, 0xaa}) {
		t.Fatalf("%q", all.Bytes())
	}
}

// A visitor that never goes on with its handshake is out after HandshakeTimeout.
func TestASlowHandshakeCostsOnlyItself(t *testing.T) {
	w := newSecureWorld(t, 0, func(c *Config) { c.HandshakeTimeout = 500 * time.Millisecond })
	slow, err := net.Dial("tcp", w.edge.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Write([]byte{22, 3, 1, 1, 0}); err != nil { // a record's header, and no more
		t.Fatal(err)
	}
	upgradeOver(t, secureConn(t, w.edge.Addr()))
	_ = slow.SetDeadline(time.Now().Add(patience))
	if _, err := slow.Read(make([]byte, 1)); err == nil {
		t.Fatal("it was answered")
	}
	eventually(t, "it is counted", func() bool {
		return w.metric("refused_total", "slow") == 1
	})
}
