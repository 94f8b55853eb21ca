package run

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spillway-io/spillway/cmd/internal/config"
)

// ClientTLS is nil if nothing of it is set. key names it in errors.
func ClientTLS(key string, cfg config.ClientTLS) (*tls.Config, error) {
	if cfg == (config.ClientTLS{}) {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	var err error
	if cfg.CAFile != "" {
		if out.RootCAs, err = certPool(key+".ca_file", cfg.CAFile); err != nil {
			return nil, err
		}
	}
	if cfg.CertFile != "" {
		if out.Certificates, err = keyPair(key, cfg.CertFile, cfg.KeyFile); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ServerTLS is nil without a certificate.
func ServerTLS(key string, cfg config.ServerTLS) (*tls.Config, error) {
	if cfg.CertFile == "" {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if out.Certificates, err = keyPair(key, cfg.CertFile, cfg.KeyFile); err != nil {
		return nil, err
	}
	if cfg.ClientCAFile != "" {
		if out.ClientCAs, err = certPool(key+".client_ca_file", cfg.ClientCAFile); err != nil {
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
