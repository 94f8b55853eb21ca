package run

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spillway-io/spillway/proto/schema"
)

// Pair is a certificate and its key.
type Pair struct {
	CertFile string `key:"cert_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/tls.crt" doc:"This PEM file holds the certificate that the node shows, and those between it and its authority."`
	KeyFile  string `key:"key_file" rule:"a file that can be read" zero:"none" example:"/etc/spillway/tls.key" doc:"This PEM file holds the key of the certificate."`
}

// Complete says of a group with a pair what is wrong with it.
func (t *Pair) Complete(group any, p *schema.Problems) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		p.AddValue(group, t.CertFile+t.KeyFile, "cert_file and key_file go together")
	}
}

// ClientTLS is for connections that a node opens. Anything in it turns TLS on.
type ClientTLS struct {
	CAFile string `key:"ca_file" rule:"a file that can be read" zero:"the authorities of the system" example:"/etc/spillway/ca.crt" doc:"The certificate of the server is of an authority in this PEM file. It turns TLS on."`
	Pair
	ServerName string `key:"server_name" zero:"the host of the address" example:"router.internal" doc:"The certificate of the server is for this name. It turns TLS on."`
}

// Check implements schema.Checker.
func (t *ClientTLS) Check(p *schema.Problems) { t.Complete(t, p) }

// ServerTLS is for connections that a node accepts.
type ServerTLS struct {
	Pair
	ClientCAFile string `key:"client_ca_file" rule:"a file that can be read" zero:"clients need no certificate" example:"/etc/spillway/clients.crt" doc:"Clients need a certificate of an authority in this PEM file."`
}

// Check implements schema.Checker.
func (t *ServerTLS) Check(p *schema.Problems) {
	t.Complete(t, p)
	if t.ClientCAFile != "" && t.CertFile == "" {
		p.Add(&t.ClientCAFile, "needs tls.cert_file and tls.key_file")
	}
}

// Config is nil if nothing of it is set. key names it in errors.
func (t ClientTLS) Config(key string) (*tls.Config, error) {
	if t == (ClientTLS{}) {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	var err error
	if t.CAFile != "" {
		if out.RootCAs, err = certPool(key+".ca_file", t.CAFile); err != nil {
			return nil, err
		}
	}
	if t.CertFile != "" {
		if out.Certificates, err = keyPair(key, t.CertFile, t.KeyFile); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Config is nil without a certificate. key names it in errors.
func (t ServerTLS) Config(key string) (*tls.Config, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if out.Certificates, err = keyPair(key, t.CertFile, t.KeyFile); err != nil {
		return nil, err
	}
	if t.ClientCAFile != "" {
		if out.ClientCAs, err = certPool(key+".client_ca_file", t.ClientCAFile); err != nil {
			return nil, err
		}
		out.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return out, nil
}

func keyPair(key, cert, private string) ([]tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, private)
	if err != nil {
		return nil, Usagef("%s: %v", key, err)
	}
	return []tls.Certificate{pair}, nil
}

func certPool(key, path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, Usagef("%s: %v", key, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, &UsageError{fmt.Sprintf("%s: %s: no PEM certificate in it", key, path)}
	}
	return pool, nil
}
