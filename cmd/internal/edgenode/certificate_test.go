package edgenode

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

// writePair makes a certificate with a serial number and its key; alien: with the key
// of another one.
func writePair(t *testing.T, f gatewayfile.TLS, serial int64, alien bool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"edge.example"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if alien {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		f.CertFile: {Type: "CERTIFICATE", Bytes: der}, f.KeyFile: {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// shows is the serial number of the certificate that a newcomer is shown.
func shows(t *testing.T, cfg *tls.Config) int64 {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	end := time.Now().Add(10 * time.Second)
	_, _ = near.SetDeadline(end), far.SetDeadline(end)
	done := make(chan error, 1)
	go func() { done <- tls.Server(near, cfg).Handshake() }()        // ends with the deadline; received below
	client := tls.Client(far, &tls.Config{InsecureSkipVerify: true}) // its name is not what is tested
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	serial := client.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return serial
}

func TestSIGHUPShowsANewCertificateAndABadOneChangesNothing(t *testing.T) {
	file := gatewayfile.Default()
	file.TLS = gatewayfile.TLS{Pair: run.Pair{CertFile: filepath.Join(t.TempDir(), "cert"), KeyFile: filepath.Join(t.TempDir(), "key")}}
	writePair(t, file.TLS, 1, false)
	cfg, shown, err := serverTLS(file.TLS)
	if err != nil {
		t.Fatal(err)
	}
	next, edge := file, &fakeEdge{}
	r := &reloader{
		edge: edge, agreed: &fakeAgreed{}, log: slog.New(slog.DiscardHandler), file: &file, certificate: shown,
		read: func() (*gatewayfile.File, error) { f := next; return &f, nil },
	}
	if n := shows(t, cfg); n != 1 {
		t.Fatalf("certificate %d is shown", n)
	}
	writePair(t, file.TLS, 2, false)
	r.hangup()
	if n := shows(t, cfg); n != 2 {
		t.Errorf("certificate %d is shown after SIGHUP", n)
	}
	next.TLS.CertFile, next.TLS.KeyFile = filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	next.TLSHandshakesPerSecond = 70
	writePair(t, next.TLS, 3, true)
	r.hangup()
	if s, taken, refused := edge.state(); taken != 1 || refused != 1 || s.TLSHandshakesPerSecond != 0 || shows(t, cfg) != 2 {
		t.Errorf("a key of another certificate: %d taken, %d refused, %d/s", taken, refused, s.TLSHandshakesPerSecond)
	}
	writePair(t, next.TLS, 4, false)
	next.Admission.FreshPerSecond = -1
	r.hangup()
	if _, _, refused := edge.state(); refused != 2 || shows(t, cfg) != 2 {
		t.Error("a good certificate came with bad settings and is shown")
	}
	next.Admission.FreshPerSecond = 100
	r.hangup()
	if s, _, _ := edge.state(); s.TLSHandshakesPerSecond != 70 || shows(t, cfg) != 4 {
		t.Errorf("%d/s", s.TLSHandshakesPerSecond)
	}
	if keys := file.Waiting(&next); len(keys) > 0 {
		t.Errorf("waits for the next start: %v", keys)
	}
}
