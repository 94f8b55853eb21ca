package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/spillway-io/spillway/proto/wire"
)

// The same over real sockets, plain and with TLS: header, subprotocol, events that
// come in one segment with the answer to the handshake, goodbye with 1000.
func TestOverRealSockets(t *testing.T) {
	for _, secure := range []bool{false, true} {
		got := make(chan string, 10)
		mux := http.NewServeMux()
		mux.HandleFunc("/edge/v1/ws", func(w http.ResponseWriter, r *http.Request) {
			up := ws.HTTPUpgrader{Protocol: func(p string) bool { return p == wire.ProtocolJSON }}
			nc, rw, hs, err := up.Upgrade(r, w)
			if err != nil {
				t.Error(err)
				return
			}
			got <- hs.Protocol + " " + r.Header.Get("X-Test")
			p := &peer{t: t, s: newServer(t), nc: nc, r: bufio.NewReader(rw)}
			p.nc.SetDeadline(time.Now().Add(30 * time.Second))
			id := p.next().Id
			p.send(id, hello+`{"channel":"a","epoch":"e","offset":0,"recovered":false}`+helloEnd, event("a", 1))
			f, err := p.readFrame()
			if f = ws.UnmaskFrame(f); err == nil && f.Header.OpCode == ws.OpClose {
				code, _ := ws.ParseCloseFrameData(f.Payload)
				got <- wire.CloseCode(code).Name()
			}
			ws.WriteFrame(nc, ws.NewCloseFrame(f.Payload))
			nc.Close()
		})
		s := httptest.NewUnstartedServer(mux)
		opts := []Option{WithHTTPHeader(http.Header{"X-Test": {"yes"}})}
		if secure {
			s.StartTLS()
			pool := x509.NewCertPool()
			pool.AddCert(s.Certificate())
			opts = append(opts, WithTLSConfig(&tls.Config{RootCAs: pool, ServerName: "example.com"}))
		} else {
			s.Start()
		}
		c, err := New(strings.Replace(s.URL, "http", "ws", 1)+"/edge/v1/ws", opts...)
		if err != nil {
			t.Fatal(err)
		}
		l := newLog()
		mustSubscribe(t, c, "a", l)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if err := c.Connect(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		l.expect(t, "subscribed e:0 recovered=false", `event e:1 {"n":1}`)
		if info := c.Info(); info.Node != "edge-1" || info.Session != "s" || info.Region != "eu" {
			t.Errorf("%+v", info)
		}
		c.Close()
		for _, want := range []string{"spillway.v1.json yes", "normal"} {
			if line := <-got; line != want {
				t.Errorf("secure %v: the server saw %q, want %q", secure, line, want)
			}
		}
		s.Close()
	}
}

func TestURLsThatCannotBe(t *testing.T) {
	for _, u := range []string{"", "http://a/v1/ws", "ws://", "ws://u:p@a/v1/ws", "ws://a/#x", "ws://a:b/", "://"} {
		if _, err := New(u); err == nil {
			t.Errorf("%q passed", u)
		}
		if _, err := New("ws://ok", WithURLs(u)); err == nil {
			t.Errorf("%q passed as a second one", u)
		}
	}
}
