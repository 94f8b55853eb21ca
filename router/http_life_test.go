package router

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
)

// running is a router that the test itself stops.
func running(t *testing.T, store history.Store, change func(*Config)) (r *Router, stop func() <-chan error) {
	t.Helper()
	cfg := testConfig("r1")
	change(&cfg)
	r, err := New(cfg, Deps{Store: store, Bus: &recorder{}, Members: newMembers(snapshotOf(1, routerMember("r1", ""))), Peers: noPeers{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	if err := r.ListenHTTP(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // ends with ctx; the test waits for it
	eventually(t, "the router is ready", r.Ready)
	return r, func() <-chan error { cancel(); return ended }
}

// held is a store whose appends wait.
type held struct {
	history.Store
	entered, free chan struct{}
}

func (h *held) Append(ctx context.Context, runs []history.Run) ([]history.Outcome, error) {
	h.entered <- struct{}{}
	select {
	case <-h.free:
		return h.Store.Append(ctx, runs)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func hold() *held {
	return &held{Store: memory.New(memory.Default()), entered: make(chan struct{}, 100), free: make(chan struct{})}
}

type answered struct {
	status int
	text   string
	err    error
}

// post publishes in a goroutine that ends with the answer.
func post(client *http.Client, url string) <-chan answered {
	got := make(chan answered, 1)
	go func() {
		resp, err := client.Post(url+"/v1/publish", "application/json", strings.NewReader(`{"channel":"chat:a","data":1}`))
		if err != nil {
			got <- answered{err: err}
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		got <- answered{resp.StatusCode, string(text), err}
	}()
	return got
}

func TestHTTPCallsAreAnsweredWhileTheRouterLeaves(t *testing.T) {
	store := hold()
	r, stop := running(t, store, withHTTP)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	got := post(client, "http://"+r.HTTPAddr())
	<-store.entered
	ended := stop()
	eventually(t, "nobody comes in any more", func() bool {
		conn, err := net.Dial("tcp", r.HTTPAddr())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(store.free)
	if a := <-got; a.err != nil || a.status != 200 || !strings.Contains(a.text, `"offset":1`) {
		t.Errorf("%+v", a)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestHTTPCallsDoNotHoldTheRouterForLong(t *testing.T) {
	store := hold()
	r, stop := running(t, store, func(c *Config) { withHTTP(c); c.StopTimeout, c.StoreTimeout = 200*time.Millisecond, time.Second })
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	got := post(client, "http://"+r.HTTPAddr())
	<-store.entered
	ended := stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(15 * time.Second):
		t.Error("the router waits for the store")
	}
	if a := <-got; a.err == nil && a.status == 200 {
		t.Errorf("acked although the store did not answer: %+v", a)
	}
}

func TestHTTPHasTheCertificateOfGRPC(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	n := start(t, nil, func(c *Config) {
		withHTTP(c)
		c.API.HTTPTLS = secure
	})
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	for _, http2 := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: http2}
		if a := <-post(&http.Client{Transport: transport}, "https://"+n.HTTPAddr()); a.err != nil || a.status != 200 {
			t.Errorf("%+v", a)
		}
		transport.CloseIdleConnections()
	}
	if a := <-post(http.DefaultClient, "http://"+n.HTTPAddr()); a.status == 200 {
		t.Errorf("plain text passed: %+v", a)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestHTTPWithoutKeysIsLoopbackOnly(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:0": "", "localhost:8380": "", "[::1]:8380": "",
		":8380": "only a loopback", "0.0.0.0:8380": "only a loopback", "10.0.0.1:8380": "only a loopback", "8380": "host:port",
	} {
		cfg := testConfig("r1")
		cfg.API.HTTPListen = address
		err := cfg.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
		cfg.API.Keys = []api.Key{{Name: "k", Secret: writerKey}}
		if err := cfg.Validate(); err != nil && want != "host:port" {
			t.Errorf("%s with keys: %v", address, err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := testConfig("r1")
	cfg.API.HTTPListen = taken.Addr().String()
	r, err := New(cfg, Deps{Store: memory.New(memory.Default()), Bus: &recorder{}, Members: newMembers(snapshotOf(1)), Peers: noPeers{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.ListenHTTP(t.Context()); err == nil || !strings.Contains(fmt.Sprint(err), "in use") {
		t.Errorf("a port that is taken: %v", err)
	}
}
