package edgenode

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"

	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
)

// certificate is what an edge that ends TLS shows; SIGHUP replaces it.
type certificate struct {
	now atomic.Pointer[tls.Certificate]
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.now.Load(), nil }

// load reads the pair that a file names; nil: this edge has none, or the file names
// none any more, which waits for the next start.
func (c *certificate) load(t gatewayfile.TLS) (*tls.Certificate, error) {
	if c == nil || t.CertFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return &pair, nil
}
